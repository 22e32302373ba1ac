//! Types, constants and inlines, compared with what a C compiler makes of the installed headers.
//!
//! The bindings come from libclang, the inlines were written by hand: here the C compiler is the judge of both. Skipped, with
//! a printed reason, where headers or compiler are missing or of another release; `VERBATIM_REQUIRE_HEADERS=1` makes that a
//! failure.

mod compile;
mod complete;
mod fake;
mod inlines;
mod layout;
mod words;
