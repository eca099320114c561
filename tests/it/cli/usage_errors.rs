//! Usage errors: missing servers and flags that cannot be used.

use super::{deferral, text};

#[test]
fn without_a_server_the_ways_to_name_one_are_shown() {
    let output = deferral(&[]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    for way in ["deferral --upstream ", "deferral --config "] {
        assert!(said.contains(way), "{said}");
    }
}

#[test]
fn what_is_not_there_is_not_offered() {
    let schema = deferral(&["check", "--schema"]);
    let nothing = deferral(&[]);
    let help = deferral(&["serve", "--help"]);
    let store = deferral(&["--upstream", "http://x/", "--store", "tape"]);
    let said = [&schema.stdout, &nothing.stderr, &help.stdout, &store.stderr].map(|bytes| text(bytes));
    for word in ["supervise", "redis"] {
        assert!(!said.iter().any(|said| said.contains(word)), "{word}: {said:#?}");
    }
    assert!(said[3].contains("use memory"), "{}", said[3]);
}

#[test]
fn a_flag_that_cannot_be_used_says_why_and_exits_with_2() {
    for (words, part) in [
        (&["--upstream", "127.0.0.1:9000/mcp"][..], "did you mean `http://127.0.0.1:9000/mcp`?"),
        (&["--upstream", "http://x/", "--listen", "localhost:1"], "did you mean `127.0.0.1:1`?"),
        (&["--upstream", "http://x/", "--after", "5"], "did you mean `5s` or `5ms`?"),
        (&["--upstream", "http://x/", "--mode", "maybe"], "use auto, never, always, required, observe or"),
        (&["--upstream", "http://x/", "--tool", "x"], "write PATTERN=MODE"),
        (
            &["--upstream", "http://x/", "--store", "disk:"],
            "'--store <STORE>': `disk:` names no folder; write it as in `disk:./data`",
        ),
        (&["--", "no-such-program", "x"], "-- CMD: `no-such-program` is not found in PATH ("),
        (&["--listen", "0.0.0.0:0", "--", "sh"], "write `shared: true` under `upstream` (`--shared`)"),
        (&["--shared", "--upstream", "http://x/"], "required"),
        (&["--upstream", "http://x/", "--", "python"], "has both"),
        (&["--config", "no/such.yaml"], "no/such.yaml: cannot be read"),
        (&["--upstream", "http://x/", "--host", "http://mcp"], "write a host name only"),
        (&["--nonsense"], "unexpected argument"),
        (&["check"], "Usage"),
    ] {
        let output = deferral(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains(part), "{words:?}: {said}");
    }
}
