//! A client with servers that do what they like.
pub fn soak(_seed: u64, _cases: u64) {}
