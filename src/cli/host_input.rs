//! Detects that an MCP host started this program as a stdio server.
//!
//! `serve` serves HTTP, so such a host would wait forever for a response to `initialize` on standard output.
//! Standard input is therefore searched for a JSON-RPC message; other input is ignored.

use crate::protocol::MessageReader;
use std::{
    io::{self, BufRead, BufReader, IsTerminal, Read},
    thread,
};
use tokio::sync::oneshot;

/// Maximum number of bytes of standard input that are read. The first message of a host is far shorter, and
/// comes first.
const MAX_INPUT_BYTES: u64 = 1 << 20;

/// Starts to read standard input. The receiver resolves when a JSON-RPC message arrives, or with an error at
/// the end of the input. `None` for a terminal, which is not read.
///
/// The reading thread ends with the process, because a blocked read cannot be cancelled.
pub fn watch_stdin() -> Option<oneshot::Receiver<()>> {
    if io::stdin().is_terminal() {
        return None;
    }
    let (sender, message) = oneshot::channel();
    let reader = thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        if has_message(io::stdin().lock()) {
            let _ = sender.send(());
        }
    });
    reader.is_ok().then_some(message)
}

/// Whether a line of the input is a JSON-RPC message or batch.
fn has_message(input: impl Read) -> bool {
    let mut input = BufReader::new(input.take(MAX_INPUT_BYTES));
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return false,
        }
        let text = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&line).trim_ascii();
        let mut messages = MessageReader::new(text.to_vec().into());
        if messages.any(|message| message.is_ok_and(|message| message.is_json_rpc())) {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_json_rpc_message_on_a_line_is_one() {
        for (input, is_message) in [
            (r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#, true),
            ("\n\n  {\"method\":\"ping\",\"jsonrpc\":\"2.0\",\"id\":1}\r\n", true),
            (r#"[{"jsonrpc":"2.0","id":0,"method":"initialize"}]"#, true),
            ("\u{feff}{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n", true),
            ("y\ny\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}", true),
            ("", false),
            ("\n\n", false),
            ("hello\n", false),
            (r#"{"id":0,"method":"initialize"}"#, false),
            (r#"{"jsonrpc":"1.0","id":0,"method":"initialize"}"#, false),
            (r#"{"level":"info","method":"GET"}"#, false),
            ("{\"jsonrpc\":\"2.0\",\n\"id\":0,\"method\":\"initialize\"}", false),
        ] {
            assert_eq!(has_message(input.as_bytes()), is_message, "{input}");
        }
    }

    #[test]
    fn the_input_that_is_read_is_bounded() {
        let mut endless = io::repeat(b'y');
        assert!(!has_message(&mut endless));
    }
}
