//! What a server wrote, made fit for a terminal.

/// The text with what could deceive its reader written out: control characters, which terminals
/// obey, and those that change the direction of what follows.
pub(super) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        let turns =
            matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match char {
            '\n' => out.push('\n'),
            '\t' => out.push_str("    "),
            '\r' => {}
            _ if turns || char.is_control() => out.extend(char.escape_unicode()),
            _ => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_wrote_cannot_move_the_cursor() {
        assert_eq!(plain("a\u{1b}[2Jb\r\n\tc\u{7}"), "a\\u{1b}[2Jb\n    c\\u{7}");
        assert_eq!(plain("evil\u{202e}moc.elpmaxe"), "evil\\u{202e}moc.elpmaxe");
        assert_eq!(plain("Zürich 世 😀"), "Zürich 世 😀");
    }
}
