//! Helpers for the tests that cross layers.
