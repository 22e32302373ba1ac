//! Tests that need two real processes.
