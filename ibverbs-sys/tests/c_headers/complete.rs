//! No inline is forgotten: neither one that the headers have, nor one that the comparison leaves out.

use std::collections::BTreeSet;

use crate::compile;

/// Inlines of the headers that have no counterpart, and why.
const LEFT_OUT: [&str; 2] = [
    // Behind `ibv_reg_mr` and `ibv_reg_mr_iova`, which are here.
    "__ibv_reg_mr",
    "__ibv_reg_mr_iova",
];

fn read(path: &str) -> String {
    std::fs::read_to_string(compile::crate_dir().join(path)).expect("part of the crate")
}

/// The name before the first parenthesis after each `marker`.
fn names_after<'a>(text: &'a str, marker: &str) -> BTreeSet<&'a str> {
    text.split(marker)
        .skip(1)
        .filter_map(|rest| rest.split_once('('))
        .filter_map(|(head, _)| head.rsplit([' ', '*', '\n', '\t', '<']).next())
        .filter(|name| {
            ["ibv_", "rdma_", "verbs_"]
                .iter()
                .any(|p| name.trim_start_matches('_').starts_with(p))
        })
        .collect()
}

fn ours() -> BTreeSet<String> {
    let dir = compile::crate_dir().join("src/inline");
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).expect("part of the crate") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a source file");
        names.extend(names_after(&text, "fn ").into_iter().map(str::to_owned));
    }
    names
}

#[test]
fn every_inline_of_the_headers_is_here() {
    let source = "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n";
    let Some(text) = compile::preprocessed("complete", source) else {
        return;
    };
    let headers: BTreeSet<String> = names_after(&text, "static inline ")
        .into_iter()
        .chain(names_after(&text, "static inline\n"))
        .filter(|name| !LEFT_OUT.contains(name))
        .map(|name| name.trim_start_matches("___").to_owned())
        .collect();
    assert!(
        headers.len() > 90,
        "only {} inlines found in the headers",
        headers.len()
    );
    let ours = ours();
    let missing: Vec<_> = headers.difference(&ours).collect();
    assert!(missing.is_empty(), "not written in Rust: {missing:?}");
}

#[test]
fn every_inline_is_compared() {
    let text = read("tests/c_headers/inlines.rs");
    let (_, tests) = text
        .split_once("struct Outcome")
        .expect("what is before only adapts signatures");
    let forgotten: Vec<String> = ours()
        .into_iter()
        .filter(|name| !tests.contains(&format!(" {name}(")))
        .collect();
    assert!(forgotten.is_empty(), "not compared with C: {forgotten:?}");
}
