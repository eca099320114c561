//! `deferral tasks` as a command.

use crate::proxy::proxy_and_server::{SLOW, Setup};
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::TcpListener,
    process::{Command, Output},
    thread,
};

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
    let admin = world.proxy.admin.as_ref().expect("there is one");
    let (url, token) = (admin.url.trim_end_matches('/'), admin.generated_token());
    let token = token.expose();

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
    assert_eq!(text(&none.stdout), "no tasks\n");

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

#[test]
fn a_token_is_sent_only_to_a_listener_that_proves_to_know_it() {
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("admin.token");
    std::fs::write(&file, SECRET).expect("it is written");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    // Another user of the machine listens on the proxy's admin address.
    let liar = thread::spawn(move || {
        let mut heard = String::new();
        for _ in 0..2 {
            let (mut socket, _) = listener.accept().expect("a command");
            let mut some = [0; 4096];
            let length = socket.read(&mut some).expect("a request");
            let request = String::from_utf8_lossy(&some[..length]).into_owned();
            let body = serde_json::json!({ "file": file, "proof": "00".repeat(32) }).to_string();
            let status = if request.starts_with("POST") { "401 Unauthorized" } else { "200 OK" };
            let head =
                format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            socket.write_all(format!("{head}{body}").as_bytes()).expect("it is read");
            heard.push_str(&request);
        }
        heard
    });
    let output = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .args(["tasks", "cancel", "0123456789ab", "--admin", &format!("http://{address}")])
        .env_remove("DEFERRAL_ADMIN_TOKEN")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("admin token: PATH"), "{output:?}");
    let heard = liar.join().expect("two requests");
    assert!(heard.contains("GET /token?nonce=") && !heard.contains(SECRET), "{heard}");
    assert!(!heard.to_lowercase().contains("authorization"), "{heard}");
}

#[tokio::test]
async fn a_token_goes_unencrypted_to_this_machine_alone() {
    let refused = tasks(&["list", "--admin", "http://192.0.2.1:8809"], Some("0123456789abcdef")).await;
    assert_eq!(refused.status.code(), Some(2));
    let said = text(&refused.stderr);
    assert!(said.contains("http://192.0.2.1:8809") && said.contains("https://"), "{said}");
}
