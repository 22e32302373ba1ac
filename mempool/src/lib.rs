//! A pool of registered memory made for scatter/gather work requests
