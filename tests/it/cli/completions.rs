//! Shell completions and manual pages.

use super::{deferral, text};
use std::process::Command;

const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

/// What `--help` names, and `help` itself.
fn commands() -> Vec<String> {
    let help = deferral(&["--help"]);
    let rows = text(&help.stdout).lines().skip_while(|line| *line != "Commands:").skip(1);
    let rows = rows.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    rows.map(str::to_owned).collect()
}

#[test]
fn shells_know_every_command_there_is_and_none_that_is_not_shown() {
    let commands = commands();
    assert!(commands.len() > 8 && commands.iter().any(|command| command == "demo"), "{commands:?}");
    for shell in SHELLS {
        let output = deferral(&["completions", shell]);
        let script = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        for command in &commands {
            assert!(script.contains(command), "{shell} does not know {command}");
        }
        assert!(!script.contains("supervise"), "{shell} knows what nobody types");
    }
    assert_eq!(deferral(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn bash_completes_commands_and_flags() {
    let completed = |words: &str| {
        let script = format!(
            "source <('{}' completions bash); COMP_WORDS=(deferral {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _deferral deferral \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\"",
            env!("CARGO_BIN_EXE_deferral")
        );
        let output = Command::new("bash").args(["-c", &script]).output().expect("bash is there");
        text(&output.stdout).trim().to_owned()
    };
    assert_eq!(completed("exp"), "explain");
    assert_eq!(completed("serve --ups"), "--upstream");
    assert_eq!(completed("tasks canc"), "cancel");
    assert_eq!(completed("serve --mode al"), "always");
    assert_eq!(completed("tasks list --status inp"), "input_required");
    assert_eq!(completed("call http://x/ --protocol 2026"), "2026-07-28");
}

#[test]
fn every_command_has_a_manual_page() {
    let page = |words: &[&str]| {
        let output = deferral(&[&["man"], words].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        text(&output.stdout).to_owned()
    };
    let own = page(&[]);
    let first = own.lines().find(|line| line.starts_with(".TH")).expect("a title");
    assert!(first.starts_with(".TH deferral 1"), "{first}");
    for command in commands().iter().filter(|command| *command != "help") {
        assert!(own.contains(&format!("deferral\\-{command}(1)")), "{command} is not named in\n{own}");
        assert!(page(&[command]).contains(&format!(".TH deferral-{command} 1")), "{command}");
    }
    assert!(!own.contains("supervise"), "{own}");
    assert!(page(&["tasks", "list"]).contains("\\-\\-limit"));
    for none in [&["man", "nothing"][..], &["man", "supervise"], &["man", "tasks", "nothing"]] {
        let refused = deferral(none);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains("unknown command"), "{refused:?}");
    }
}
