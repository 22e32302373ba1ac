//! What must not compile. After a change of compiler, look at the differences and run with `TRYBUILD=overwrite`.

#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
    #[cfg(feature = "zerocopy")]
    cases.compile_fail("tests/ui/typed/*.rs");
}
