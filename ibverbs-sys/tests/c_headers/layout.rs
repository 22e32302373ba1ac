//! Sizes, offsets and constants: whatever the generated file asserts or defines is evaluated by the C compiler.

use std::fmt::Write as _;

use crate::compile;

/// A C expression and the value that the bindings give it.
struct Fact {
    expression: String,
    value: i128,
}

#[test]
fn the_c_compiler_agrees_about_sizes_offsets_and_constants() {
    let file = if cfg!(target_arch = "aarch64") {
        "aarch64.rs"
    } else {
        "x86_64.rs"
    };
    let path = compile::crate_dir().join("src/bindings").join(file);
    let bindings = std::fs::read_to_string(&path).expect("the bindings are part of the crate");
    let mut facts = sizes_and_offsets(&bindings);
    assert!(
        facts.len() > 900,
        "only {} sizes and offsets found",
        facts.len()
    );
    let constants = constants(&bindings);
    assert!(
        constants.len() > 500,
        "only {} constants found",
        constants.len()
    );
    facts.extend(constants);
    facts.extend(aliases());

    let mut source = String::from(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\nconst long long values[] = {\n",
    );
    for fact in &facts {
        writeln!(source, "\t(long long)({}),", fact.expression).expect("a string can grow");
    }
    source.push_str("};\n");
    let Some(object) = compile::object("layout", &source) else {
        return;
    };
    // SAFETY: the array has one element for each fact.
    let values = unsafe {
        core::slice::from_raw_parts(
            object.symbol("values").cast::<i64>().cast_const(),
            facts.len(),
        )
    };
    let wrong: Vec<String> = facts
        .iter()
        .zip(values)
        .filter(|(fact, value)| fact.value as i64 != **value)
        .map(|(fact, value)| {
            format!(
                "{} is {value} in C, {} in Rust",
                fact.expression, fact.value
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// From bindgen's assertions, which hold: they are compiled with the crate.
fn sizes_and_offsets(bindings: &str) -> Vec<Fact> {
    let mut facts = Vec::new();
    // The formatter breaks long assertions into two lines.
    let joined: String = bindings.split_whitespace().collect::<Vec<_>>().join(" ");
    for piece in joined.split("[\"").flat_map(|p| p.split("[ \"")).skip(1) {
        let Some((text, rest)) = piece.split_once('"') else {
            continue;
        };
        let Some(value) = rest
            .split_once(" - ")
            .and_then(|(_, v)| v.split_once("usize"))
        else {
            continue;
        };
        let value = value.0.parse().expect("a number before usize");
        let expression = if let Some(name) = text.strip_prefix("Size of ") {
            c_type(bindings, name).map(|t| format!("sizeof({t})"))
        } else if let Some(name) = text.strip_prefix("Alignment of ") {
            c_type(bindings, name).map(|t| format!("_Alignof({t})"))
        } else if let Some((name, field)) = text
            .strip_prefix("Offset of field: ")
            .and_then(|n| n.split_once("::"))
        {
            let field = if field == "priv_" || field == "type_" {
                &field[..4]
            } else {
                field
            };
            c_type(bindings, name)
                .filter(|_| !field.starts_with("__bindgen"))
                .map(|t| format!("offsetof({t}, {field})"))
        } else {
            None
        };
        facts.extend(expression.map(|expression| Fact { expression, value }));
    }
    facts
}

/// `struct name` or `union name`; `None` for what has no name in C.
fn c_type(bindings: &str, name: &str) -> Option<String> {
    if name.contains("bindgen") {
        return None;
    }
    let keyword = if bindings.contains(&format!("pub union {name} ")) {
        "union"
    } else {
        "struct"
    };
    Some(format!("{keyword} {name}"))
}

/// `pub const NAME: type = number;`, or `= type(number);` for an enum.
fn constants(bindings: &str) -> Vec<Fact> {
    let joined: String = bindings.split_whitespace().collect::<Vec<_>>().join(" ");
    let parse = |piece: &str| {
        let (name, rest) = piece.split_once(": ")?;
        let (ty, rest) = rest.split_once(" = ")?;
        let literal = rest.split_once(';')?.0.trim();
        let digits = match literal.split_once('(') {
            Some((enum_name, inner)) if enum_name.trim() == ty => {
                inner.trim_end_matches([')', ',', ' '])
            }
            _ => literal,
        };
        Some(Fact {
            expression: name.to_owned(),
            value: digits.trim().parse().ok()?,
        })
    };
    joined
        .split("pub const ")
        .skip(1)
        .filter_map(parse)
        .collect()
}

/// What is written by hand.
fn aliases() -> Vec<Fact> {
    use ibverbs_sys as sys;
    let facts = [
        (
            "IBV_QPF_GRH_REQUIRED",
            i128::from(sys::IBV_QPF_GRH_REQUIRED),
        ),
        (
            "IBV_ACCESS_OPTIONAL_RANGE",
            i128::from(sys::IBV_ACCESS_OPTIONAL_RANGE),
        ),
        (
            "IBV_ADVISE_MR_FLAG_FLUSH",
            i128::from(sys::IBV_ADVISE_MR_FLAG_FLUSH),
        ),
        (
            "IBV_ADVISE_MR_ADVICE_PREFETCH",
            i128::from(sys::IBV_ADVISE_MR_ADVICE_PREFETCH.0),
        ),
        (
            "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE",
            i128::from(sys::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE.0),
        ),
        (
            "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT",
            i128::from(sys::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT.0),
        ),
        (
            "(intptr_t)__VERBS_ABI_IS_EXTENDED",
            sys::inline::VERBS_ABI_IS_EXTENDED.addr() as isize as i128,
        ),
    ];
    facts
        .into_iter()
        .map(|(expression, value)| Fact {
            expression: expression.into(),
            value,
        })
        .collect()
}
