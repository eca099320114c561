//! Callers that share a process with callers that declare more capabilities.

use super::{Proxy, SERVER, admin_processes::until, arguments};
use serde_json::json;
use std::{fs, process::Command};

#[tokio::test]
async fn a_caller_in_a_process_with_more_capabilities_gets_the_missing_capability() {
    let folder = tempfile::tempdir().expect("a folder");
    let gates = ["larger", "smaller"].map(|name| folder.path().join(name));
    for gate in &gates {
        assert!(Command::new("mkfifo").arg(gate).status().expect("it runs").success());
    }
    let command = format!("[python3, '{SERVER}']");
    let proxy = Proxy::of_file(&format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nroutes: [{{ upstream: {{ command: {command}, inherit_env: all, instances: 1 }} }}]\n"
    ));
    let admin = proxy.admin().await;
    let more = json!({ "elicitation": {}, "roots": {}, "sampling": {} });
    let larger = proxy.client().declaring(more.clone());
    let waiting = larger.send("tools/call", arguments("wait", json!({ "gate": gates[0] }))).await;
    let waiting = tokio::spawn(waiting.answer());
    // The process has read it: a later call cannot overtake it.
    proxy.has_logged("it waits").await;
    // There may be no other process, and this one is in use.
    let smaller = proxy.client().declaring(json!({ "roots": {} }));
    let asked = smaller.send("tools/call", arguments("ask", json!({ "gate": gates[1] }))).await;
    let asked = tokio::spawn(asked.answer());
    let said = until(&admin, |said| said["running"][0]["calls"] == 2).await;
    let running = said["running"].as_array().expect("a list");
    assert_eq!(
        (running.len(), &running[0]["capabilities"], &said["starts"]),
        (1, &more, &json!(1)),
        "{said}"
    );
    fs::write(&gates[0], "go\n").expect("somebody waits at the gate");
    assert_eq!(waiting.await.expect("it is answered").text(), "waited");
    fs::write(&gates[1], "go\n").expect("somebody waits at the gate");
    let refused = asked.await.expect("it is answered");
    assert_eq!(refused.refusal(), (400, -32021), "{refused:?}");
    let needed = json!({ "requiredCapabilities": { "elicitation": { "form": {} } } });
    assert_eq!(refused.error()["data"], needed);
    // Callers that declared the capability get the input request there.
    let round = larger.call("ask").await.answer().await.result();
    assert_eq!(round["resultType"], "input_required", "{round}");
    assert_eq!(until(&admin, |_| true).await["starts"], 1, "it is the same process");
    proxy.dies().await;
}

#[tokio::test]
async fn an_input_request_after_the_response_of_another_call_belongs_to_the_only_open_call() {
    let proxy = Proxy::start("plain");
    let [one, other] = [(), ()].map(|()| proxy.client().declaring(json!({ "elicitation": {} })));
    let later = one.call("later").await;
    let later = tokio::spawn(later.answer());
    proxy.has_logged("it is left for later").await;
    // It shares the process, as that has asked nothing.
    let round = other.call("ask behind").await.answer().await.result();
    assert_eq!(later.await.expect("it is answered").text(), "later");
    assert_eq!(round["resultType"], "input_required", "{round}");
    proxy.dies().await;
}
