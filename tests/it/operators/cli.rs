//! `deferral tasks`, as people type it.

use crate::proxy::world::{SLOW, Setup};
use serde_json::Value;
use std::process::{Command, Output};

async fn tasks(words: &[&str], token: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
    command.arg("tasks").args(words).env_remove("DEFERRAL_ADMIN_TOKEN");
    if let Some(token) = token {
        command.env("DEFERRAL_ADMIN_TOKEN", token);
    }
    tokio::task::spawn_blocking(move || command.output().expect("it starts")).await.expect("it ends")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_listed_shown_and_cancelled_by_their_handles() {
    let world = Setup::new().top("admin: 127.0.0.1:0").route(SLOW).start().await;
    let waiting = world.tasker().call("train").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let link = world.proxy.admin.as_ref().expect("there is one").link.expose().to_owned();
    let (url, token) = link.split_once("/#token=").expect("it has a token");

    let listed = tasks(&["list", "--admin", url], None).await;
    let table = text(&listed.stdout);
    assert!(listed.status.success() && table.starts_with("TASK "), "{listed:?}");
    let row = table.lines().nth(1).expect("a task");
    assert!(
        row.contains("  working  ") && row.contains("  train  ") && row.ends_with("  anonymous"),
        "{table}"
    );
    let handle = row.split(' ').next().expect("a handle").to_owned();
    assert!(!table.contains(&task), "its id is nobody's business");
    let none = tasks(&["list", "--admin", url, "--tool", "a&b", "--status", "failed"], None).await;
    assert_eq!(text(&none.stdout), "there are no such tasks\n");

    let shown = tasks(&["show", &handle, "--admin", url, "--json"], None).await;
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!((&shown["task"], &shown["status"]), (&Value::from(&*handle), &Value::from("working")));

    let people = tasks(&["show", &handle, "--admin", url], None).await;
    assert!(
        text(&people.stdout).starts_with(&format!("{handle}: train on /mcp\n  status     working\n")),
        "{people:?}"
    );

    let refused = tasks(&["cancel", &handle, "--admin", url], None).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("DEFERRAL_ADMIN_TOKEN"), "{refused:?}");
    let done = tasks(&["cancel", &handle, "--admin", url], Some(token)).await;
    assert_eq!(text(&done.stdout), format!("{handle} is cancelled\n"), "{done:?}");
    call.left().await;
    let again = tasks(&["cancel", &handle, "--admin", url], Some(token)).await;
    assert!(again.status.code() == Some(1) && text(&again.stderr).contains("cancelled already"), "{again:?}");
}

#[tokio::test]
async fn where_nothing_listens_the_remedy_is_named() {
    let nowhere = tasks(&["list", "--admin", "http://127.0.0.1:1"], None).await;
    assert_eq!(nowhere.status.code(), Some(2));
    let said = text(&nowhere.stderr);
    assert!(said.contains("http://127.0.0.1:1") && said.contains("`off`"), "{said}");
}
