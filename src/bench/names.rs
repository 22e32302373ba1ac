//! What to say to who asked for a case that there is not: which come near, or what there is, on one screen.

/// Most names that are said one by one.
const MOST: usize = 10;

/// Longest line of the summary.
const WIDTH: usize = 78;

/// Where all names are to be had.
const ALL: &str = "verbatim bench --list prints all names";

/// The names that come nearest to `filter`, if any does, or else a summary of all.
pub fn instead_of(filter: &str, names: &[String]) -> String {
    // One mistake in four letters.
    let mistakes = (filter.chars().count() / 4).max(1);
    let distances: Vec<_> = names.iter().map(|name| distance(filter, name)).collect();
    let least = distances.iter().copied().min().unwrap_or(usize::MAX);
    if least > mistakes || least >= filter.chars().count() {
        return format!("there are{}\n{ALL}", summary(names));
    }
    let nearest: Vec<_> = (names.iter().zip(&distances))
        .filter(|(_, distance)| **distance == least)
        .map(|(name, _)| format!("\n  {name}"))
        .collect();
    let more = match nearest.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    let said = &nearest[..nearest.len().min(MOST)];
    format!("nearest to it are{}{more}\n{ALL}", said.concat())
}

/// How many letters have to be added, left out or changed until `wanted` is a part of `name`.
fn distance(wanted: &str, name: &str) -> usize {
    let wanted: Vec<char> = wanted.chars().collect();
    // For each beginning of what is wanted, what it takes for it to end at the letter looked at.
    let mut ends: Vec<usize> = (0..=wanted.len()).collect();
    let mut best = wanted.len();
    for letter in name.chars() {
        // A part can begin anywhere: nothing of it costs nothing.
        let mut before = ends[0];
        for (i, other) in wanted.iter().enumerate() {
            let changed = before + usize::from(*other != letter);
            before = ends[i + 1];
            ends[i + 1] = changed.min(before + 1).min(ends[i] + 1);
        }
        best = best.min(ends[wanted.len()]);
    }
    best
}

/// Names of which each part is one of some: those that differ in the first only are said together.
struct Family<'a> {
    firsts: Vec<&'a str>,
    /// What there is in each of the other places.
    rest: Vec<Vec<&'a str>>,
}

/// What there is, by the parts that names have.
fn summary(names: &[String]) -> String {
    let mut families: Vec<Family<'_>> = Vec::new();
    for name in names {
        let parts: Vec<_> = name.split('/').collect();
        let (first, rest) = (parts[0], &parts[1..]);
        let same = |f: &&mut Family<'_>| f.firsts == [first] && f.rest.len() == rest.len();
        match families.iter_mut().find(same) {
            Some(family) => {
                for (there, part) in family.rest.iter_mut().zip(rest) {
                    if !there.contains(part) {
                        there.push(part);
                    }
                }
            }
            None => families.push(Family {
                firsts: vec![first],
                rest: rest.iter().map(|part| vec![*part]).collect(),
            }),
        }
    }
    let mut together: Vec<Family<'_>> = Vec::new();
    for family in families {
        match together.iter_mut().find(|f| f.rest == family.rest) {
            Some(same) => same.firsts.extend(family.firsts),
            None => together.push(family),
        }
    }
    together.iter().map(Family::lines).collect()
}

impl Family<'_> {
    fn lines(&self) -> String {
        let places = std::iter::once(&self.firsts).chain(&self.rest);
        let words = places.map(|parts| match &parts[..] {
            [one] => (*one).to_owned(),
            several => format!("{{{}}}", several.join(",")),
        });
        let pattern = words.collect::<Vec<_>>().join("/");
        // Lines end behind a comma or a slash.
        let mut lines = String::new();
        let mut width = WIDTH;
        for word in pattern.split_inclusive([',', '/']) {
            if width + word.len() > WIDTH {
                lines.push_str(if width == WIDTH { "\n  " } else { "\n    " });
                width = 4;
            }
            lines.push_str(word);
            width += word.len();
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::Case;
    use super::*;

    fn all() -> Vec<String> {
        Case::all().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn distances_are_those_to_the_nearest_part() {
        let name = "rpc/write_imm/64B/serial";
        for (wanted, mistakes) in [
            ("write_imm", 0),
            ("", 0),
            ("writeimm", 1),
            ("write__imm", 1),
            ("write-imm", 1),
            ("64b/serail", 3),
            ("xyz", 3),
        ] {
            assert_eq!(distance(wanted, name), mistakes, "{wanted}");
        }
    }

    #[test]
    fn what_is_nearly_right_gets_the_names_it_may_have_meant() {
        let said = instead_of("writeimm/64B/serial", &all());
        assert!(said.contains("\n  rpc/write_imm/64B/serial\n"), "{said}");
        assert!(!said.contains("burst") && !said.contains("more"), "{said}");
        assert!(said.contains("--list"));
        // Of many, some.
        let said = instead_of("64b/", &all());
        assert_eq!(said.lines().count(), 1 + MOST + 2, "{said}");
        assert!(said.contains(" more\n"), "{said}");
    }

    #[test]
    fn what_is_like_nothing_gets_a_summary_that_fits_on_a_screen() {
        let said = instead_of("nonsense", &all());
        assert!(said.lines().count() <= 24, "{said}");
        let long = |line: &str| line.len() > WIDTH + 4;
        assert!(!said.lines().any(long), "{said}");
        assert!(said.contains("\n  verbs/read/64B\n"), "{said}");
        assert!(said.contains("{pool,malloc"), "{said}");
        // Everything that names are made of is there.
        for name in all() {
            assert!(name.split('/').all(|part| said.contains(part)), "{name}");
        }
    }
}
