//! What all sections of the file are read with: a mapping key by key, a list item by item, and single
//! values. Each says what is wrong, where, and what would be right.

use super::{
    file::Set,
    problem::{At, Problem, nearest},
    schema,
    values::{self, Invalid, show_size},
    yaml::{self, Node, Scalar, Value},
};
use std::{path::PathBuf, time::Duration};

pub(super) type Problems = Vec<Problem>;

/// The name of what holds all sections.
pub(super) const TOP: &str = "the file";

/// A mapping whose keys are being taken one by one. It learns the keys there are from those asked
/// for, and reports the others when it is closed.
pub(super) struct Section<'n, 'p> {
    name: &'static str,
    entries: &'n [yaml::Entry],
    known: Vec<&'static str>,
    /// Keys that are understood and not offered to anybody.
    unlisted: Vec<&'static str>,
    problems: &'p mut Problems,
}

// === impl Section ===

impl<'n, 'p> Section<'n, 'p> {
    pub(super) fn open(node: &'n Node, name: &'static str, problems: &'p mut Problems) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            problems.push(Problem::new(
                node.place,
                format!("{name} must be a mapping (`key: value`), not {}", node.what()),
            ));
            return None;
        };
        Some(Self { name, entries, known: Vec::new(), unlisted: Vec::new(), problems })
    }

    pub(super) fn set<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&Node, &mut Problems) -> Option<T>,
    ) -> Set<T> {
        self.known.push(key);
        self.take(key, read)
    }

    /// As [`Section::set`], for a key that is refused in the end: nobody is told that it exists.
    pub(super) fn set_unlisted<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&Node, &mut Problems) -> Option<T>,
    ) -> Set<T> {
        self.unlisted.push(key);
        self.take(key, read)
    }

    fn take<T>(&mut self, key: &'static str, read: impl FnOnce(&Node, &mut Problems) -> Option<T>) -> Set<T> {
        let Some(entry) = self.entries.iter().find(|entry| entry.key == key) else { return Set::Unset };
        if entry.node.scalar() == Some(Scalar::Null) {
            let message = format!("`{key}` has no value; give it one or remove the line");
            self.problems.push(Problem::new(entry.key_place, message));
            return Set::Wrong;
        }
        let before = self.problems.len();
        let value = read(&entry.node, self.problems);
        // The readers of single values do not know whose value they read.
        for problem in &mut self.problems[before..] {
            if problem.message.starts_with("must ") {
                problem.message.insert_str(0, &format!("`{key}` "));
            }
        }
        match value {
            Some(value) => Set::To(At::new(entry.node.place, value)),
            None => Set::Wrong,
        }
    }

    fn place(&self) -> String {
        if self.name == TOP { "at the top level".to_owned() } else { format!("in {}", self.name) }
    }

    pub(super) fn close(self) {
        let is_understood = |key: &str| self.known.contains(&key) || self.unlisted.contains(&key);
        for entry in self.entries.iter().filter(|entry| !is_understood(&entry.key)) {
            let remedy = match (nearest(&entry.key, self.known.iter().copied()), schema::home(&entry.key)) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, Some(home)) if home.is_empty() => "it belongs to the top level".to_owned(),
                (None, Some(home)) => format!("it belongs under `{home}`"),
                (None, None) => format!("there are {}", self.known.join(", ")),
            };
            let message = format!("unknown key `{}` {}; {remedy}", entry.key, self.place());
            self.problems.push(Problem::new(entry.key_place, message));
        }
    }
}

/// The items of a list, each with its place. One that is wrong makes the list wrong, after the
/// others were looked at.
pub(super) fn list<T>(
    node: &Node,
    problems: &mut Problems,
    mut read: impl FnMut(&Node, &mut Problems) -> Option<T>,
) -> Option<Vec<At<T>>> {
    let Value::List(items) = &node.value else {
        problems
            .push(Problem::new(node.place, format!("must be a list (`- …` or `[…]`), not {}", node.what())));
        return None;
    };
    let read: Vec<_> =
        items.iter().map(|item| read(item, problems).map(|value| At::new(item.place, value))).collect();
    read.into_iter().collect()
}

/// A single value, read from its text whatever YAML takes it for.
pub(super) fn leaf<T>(
    node: &Node,
    problems: &mut Problems,
    read: impl FnOnce(&str) -> Result<T, Invalid>,
) -> Option<T> {
    let result = match node.text() {
        Some(text) if node.scalar() != Some(Scalar::Null) => read(text),
        _ => Err(Invalid(format!("must be a single value, not {}", node.what()))),
    };
    result.map_err(|Invalid(message)| problems.push(Problem::new(node.place, message))).ok()
}

pub(super) fn text(node: &Node, problems: &mut Problems) -> Option<String> {
    leaf(node, problems, |text| match text {
        "" => Err(Invalid("must not be empty".to_owned())),
        _ => Ok(text.to_owned()),
    })
}

pub(super) fn file_path(node: &Node, problems: &mut Problems) -> Option<PathBuf> {
    text(node, problems).map(PathBuf::from)
}

pub(super) fn truth(node: &Node, problems: &mut Problems) -> Option<bool> {
    if let Some(Scalar::Bool(truth)) = node.scalar() {
        return Some(truth);
    }
    problems.push(Problem::new(node.place, format!("must be true or false, not {}", shown(node))));
    None
}

pub(super) fn duration(node: &Node, problems: &mut Problems) -> Option<Duration> {
    leaf(node, problems, values::duration)
}

pub(super) fn some_duration(node: &Node, problems: &mut Problems) -> Option<Duration> {
    leaf(node, problems, |text| match values::duration(text)? {
        Duration::ZERO => Err(Invalid("must be more than 0; leave it out for the default".to_owned())),
        duration => Ok(duration),
    })
}

/// A duration that is more than nothing, or `off`.
pub(super) fn duration_or_off(node: &Node, problems: &mut Problems) -> Option<Option<Duration>> {
    // YAML 1.1 takes a bare `off` for false; whoever wrote `false` meant the same.
    if node.scalar() == Some(Scalar::Bool(false)) {
        return Some(None);
    }
    leaf(node, problems, |text| match text {
        "off" => Ok(None),
        text => match values::duration(text)? {
            Duration::ZERO => Err(Invalid("must be more than 0; `off` is for never".to_owned())),
            duration => Ok(Some(duration)),
        },
    })
}

pub(super) fn size(least: usize) -> impl FnOnce(&Node, &mut Problems) -> Option<usize> {
    move |node, problems| {
        leaf(node, problems, |text| match values::size(text)? {
            size if size < least => Err(Invalid(format!("must be at least {}", show_size(least)))),
            size => Ok(size),
        })
    }
}

pub(super) fn count<N: TryFrom<usize>>(least: usize) -> impl FnOnce(&Node, &mut Problems) -> Option<N> {
    move |node, problems| {
        leaf(node, problems, |text| {
            let digits = text.replace('_', "");
            match digits.parse().ok().and_then(|count: usize| Some((count, N::try_from(count).ok()?))) {
                Some((count, _)) if count < least => Err(Invalid(format!("must be at least {least}"))),
                Some((_, count)) => Ok(count),
                None => Err(Invalid(format!("`{text}` is not a count; write a whole number"))),
            }
        })
    }
}

fn shown(node: &Node) -> String {
    match node.text() {
        Some(text) if !text.is_empty() => format!("`{text}`"),
        _ => node.what().to_owned(),
    }
}
