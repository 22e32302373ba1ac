//! Processes that are killed or stopped, and what the others have to put up with: an error within a second, and no more.
//!
//! Limits of time are ten times what is promised, so that only a hang meets them; what it really took is printed, and measured
//! by `verbatim bench --filter death`.

mod killed;
mod leftovers;
mod part;
mod party;
mod stopped;
