//! What must not compile. After a change of compiler, look at the differences and run with `TRYBUILD=overwrite`.
#![cfg(feature = "soft")]

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
