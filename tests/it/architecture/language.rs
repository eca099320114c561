//! Measures the names and words of `src` against the limits of the language rules (`CONTRIBUTING.md`, "Conventions").

use super::{for_each_source, without_tests};
use std::collections::BTreeMap;

/// Mean length of type names, in characters, at least.
const MEAN_LENGTH: f64 = 10.0;
/// Share of type names that are one word, in percent, below this.
const ONE_WORD_PERCENT: f64 = 45.0;
/// Type names that are participles, below this.
const PARTICIPLES: usize = 10;
/// Type names borne by three or more types, below this.
const SHARED_NAMES: usize = 30;
/// Types of one name, at most; [`COMMON_NAMES`] are exempt, because their module qualifies them.
const TYPES_OF_ONE_NAME: usize = 5;
const COMMON_NAMES: &[&str] = &["Args", "Config", "Error", "Kind", "State"];

/// Words of everyday speech where a noun of the field exists, and how often all words of a row may occur together.
const RARE_WORDS: &[(&[&str], usize)] = &[(&["told"], 100), (&["nobody", "somebody", "whoever"], 50)];

/// Type names that were replaced because a reader would not search for them. They must not return.
const FORBIDDEN_TYPES: &[&str] = &[
    "Again",
    "Apart",
    "Aside",
    "Asked",
    "Beside",
    "Broom",
    "Courtesy",
    "Crew",
    "Custody",
    "Door",
    "Errand",
    "Errands",
    "Further",
    "Gist",
    "Glance",
    "Guest",
    "Guests",
    "Happening",
    "Heard",
    "Held",
    "Hello",
    "House",
    "Lasting",
    "Listening",
    "Manner",
    "Passage",
    "Passed",
    "Passing",
    "Place",
    "Rest",
    "Said",
    "Seldom",
    "Shelves",
    "Standing",
    "Teller",
    "Told",
    "Visit",
    "Way",
    "WhoMayComeIn",
    "Wire",
    "Written",
];

/// One-word type names that end like a participle and are nouns of the field.
const NOUNS: &[&str] = &["Binding", "Feed", "Ring", "Timing"];
/// Irregular participles.
const IRREGULAR: &[&str] = &[
    "Begun", "Found", "Given", "Gone", "Got", "Held", "Kept", "Known", "Left", "Lost", "Put", "Said", "Seen",
    "Sent", "Shown", "Spoken", "Taken", "Told", "Written",
];

#[test]
fn type_names_are_nouns_that_a_reader_would_search_for() {
    let names = type_names();
    let all: Vec<_> =
        names.iter().flat_map(|(name, files)| files.iter().map(move |_| name.as_str())).collect();
    let percent_of = |count: usize| 100.0 * count as f64 / all.len() as f64;

    let mean = all.iter().map(|name| name.len()).sum::<usize>() as f64 / all.len() as f64;
    let one_word = percent_of(all.iter().filter(|name| is_one_word(name)).count());
    let participles: Vec<_> = all.iter().filter(|name| is_participle(name)).collect();
    let shared: Vec<_> = names.iter().filter(|(_, files)| files.len() >= 3).map(|(name, _)| name).collect();
    println!(
        "{} types: mean length {mean:.1}, one word {one_word:.1} %, participles {}, names of three or more {}",
        all.len(),
        participles.len(),
        shared.len()
    );

    assert!(mean >= MEAN_LENGTH, "the mean length of type names is {mean:.2}, below {MEAN_LENGTH}");
    assert!(one_word < ONE_WORD_PERCENT, "{one_word:.1} % of type names are one word");
    assert!(participles.len() < PARTICIPLES, "type names that are participles: {participles:?}");
    assert!(shared.len() < SHARED_NAMES, "names of three or more types: {shared:?}");
    let crowded = names
        .iter()
        .filter(|(name, files)| files.len() > TYPES_OF_ONE_NAME && !COMMON_NAMES.contains(&name.as_str()));
    let crowded: Vec<_> = crowded.collect();
    assert!(crowded.is_empty(), "more than {TYPES_OF_ONE_NAME} types have one name: {crowded:#?}");
}

#[test]
fn forbidden_type_names_do_not_return() {
    let names = type_names();
    let found: Vec<_> = FORBIDDEN_TYPES.iter().filter_map(|name| Some((name, names.get(*name)?))).collect();
    assert!(found.is_empty(), "find a noun of the field for each: {found:#?}");
}

#[test]
fn everyday_words_are_rare() {
    for (words, limit) in RARE_WORDS {
        let mut found = BTreeMap::<String, usize>::new();
        for_each_source(|_, file, text| {
            let count = words_of(product(file, text)).filter(|word| words.contains(&word.as_str())).count();
            if count > 0 {
                found.insert(file.to_owned(), count);
            }
        });
        let count: usize = found.values().sum();
        println!("{words:?}: {count} of {limit}");
        assert!(count < *limit, "{words:?} occur {count} times, the limit is {limit}: {found:#?}");
    }
}

#[test]
fn the_reader_of_type_names_skips_associated_types_and_tests() {
    let text = "
pub struct SessionPool;
pub(crate) enum State { Open }
impl Service for SessionPool {
    type Response = ();
}
type Sender = u8;
fn f() {
    struct Inner;
}
#[cfg(test)]
mod tests {
struct Ignored;
}";
    assert_eq!(types_of(without_tests(text)), ["SessionPool", "State", "Sender", "Inner"]);
    assert!(
        is_one_word("Frame") && !is_one_word("TaskId") && is_participle("Told") && is_participle("Passing")
    );
    assert!(!is_participle("Ring") && !is_participle("SessionClosed"));
}

/// The type names of product code, each with the files that define a type of this name.
fn type_names() -> BTreeMap<String, Vec<String>> {
    let mut names = BTreeMap::<String, Vec<String>>::new();
    for_each_source(|_, file, text| {
        for name in types_of(product(file, text)) {
            names.entry(name.to_owned()).or_default().push(file.to_owned());
        }
    });
    names
}

/// The text of a file without its tests.
fn product<'a>(file: &str, text: &'a str) -> &'a str {
    let is_test = file.ends_with("tests.rs") || file.contains("/tests/");
    if is_test { "" } else { without_tests(text) }
}

fn types_of(text: &str) -> Vec<&str> {
    text.lines().filter_map(type_of).collect()
}

/// The name that a line defines as a type. An indented alias is an associated type, whose name its trait chooses.
fn type_of(line: &str) -> Option<&str> {
    let keywords = ["struct ", "enum ", "trait ", "union ", "type "];
    let item = line.trim_start();
    let is_indented = item.len() < line.len();
    let item = match item.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => item,
    };
    let keyword = keywords.iter().find(|keyword| item.starts_with(**keyword))?;
    let name = &item[keyword.len()..];
    let name = &name[..name.find(|c: char| !c.is_alphanumeric()).unwrap_or(name.len())];
    let is_associated = *keyword == "type " && is_indented;
    (name.starts_with(char::is_uppercase) && !is_associated).then_some(name)
}

fn is_one_word(name: &str) -> bool {
    name.chars().filter(|c| c.is_uppercase()).count() == 1
}

fn is_participle(name: &str) -> bool {
    let regular = (name.ends_with("ed") || name.ends_with("ing")) && !NOUNS.contains(&name);
    is_one_word(name) && (regular || IRREGULAR.contains(&name))
}

fn words_of(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphabetic()).map(str::to_lowercase)
}
