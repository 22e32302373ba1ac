//! Tests of the pool as a whole, without a device.
