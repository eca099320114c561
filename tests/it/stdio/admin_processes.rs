//! Processes at the admin listener.

use super::{Proxy, SERVER, arguments};
use crate::support::modern_client::{Answer, Client, soon};
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::sleep;

impl Proxy {
    fn with_admin(command: &[&str]) -> Self {
        Self::with(&[&["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--"], command].concat())
    }

    /// The operator's address.
    pub(super) async fn admin(&self) -> Client {
        self.has_logged("event=started").await;
        let log = self.log();
        let said = log.split_whitespace().find_map(|word| word.strip_prefix("admin="));
        Client::new(said.expect("it says where").parse().expect("an address"))
    }
}

async fn asked(admin: &Client, host: &str, path: &str) -> Answer {
    let mut request = admin.with("host", host).spelled("", None, String::new());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = path.parse().expect("a path");
    admin.send_request(request).await.answer().await
}

/// How often this limit was met.
async fn hits(admin: &Client, key: &str) -> u64 {
    let limits = asked(admin, "localhost", "/limits").await.json();
    let limit = limits.as_array().expect("a list").iter().find(|limit| limit["limit"] == key);
    limit.expect("it is there")["hits"].as_u64().expect("a number")
}

/// What is said of the first route.
async fn processes(admin: &Client) -> Value {
    let mut said = asked(admin, "localhost", "/processes").await.json();
    assert_eq!(said["routes"][0]["path"], "/mcp");
    said["routes"][0].take()
}

/// The same, once it is as wished.
pub(super) async fn until(admin: &Client, wished: impl Fn(&Value) -> bool) -> Value {
    let reached = async {
        loop {
            let said = processes(admin).await;
            if wished(&said) {
                return said;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    soon("the operator is told so", reached).await
}

#[tokio::test]
async fn the_admin_listener_shows_processes_and_the_last_output_of_an_ended_one() {
    let proxy = Proxy::with_admin(&["python3", SERVER]);
    let (client, admin) = (proxy.client(), proxy.admin().await);
    assert_eq!(
        processes(&admin).await,
        json!({ "path": "/mcp", "starts": 0, "running": [], "last_ended": null })
    );

    let declares = client.declaring(json!({ "elicitation": {} }));
    assert_eq!(client.call("echo").await.answer().await.text(), "x");
    let waiting = declares.send("tools/call", arguments("sleep", json!({ "seconds": 1000 }))).await;
    let waiting = tokio::spawn(waiting.answer());
    let said = until(&admin, |said| said["running"][1]["calls"] == 1).await;
    assert_eq!((&said["starts"], &said["last_ended"]), (&json!(2), &Value::Null));
    let running = said["running"].as_array().expect("a list").clone();
    let below = proxy.below();
    for (process, (capabilities, calls)) in
        running.iter().zip([(json!({}), 0), (json!({ "elicitation": {} }), 1)])
    {
        assert_eq!((&process["capabilities"], &process["calls"]), (&capabilities, &json!(calls)));
        let pid = u32::try_from(process["pid"].as_u64().expect("it is known")).expect("a pid");
        assert!(below.contains(&pid), "{pid} {below:?}");
        assert!(
            process["since"].as_str().is_some_and(|since| since.starts_with("20") && since.ends_with('Z'))
        );
        assert_eq!(process.get("caller"), None, "it is everybody's");
    }

    let lost = client.ask("tools/call", arguments("die", json!({ "code": 3 }))).await;
    assert!(!lost.body.contains("the last words"), "{lost:?}");
    let said = until(&admin, |said| !said["last_ended"].is_null()).await;
    let ended = &said["last_ended"];
    assert_eq!((&ended["how"], &ended["is_wanted"]), (&json!("exit status: 3"), &json!(false)));
    assert_eq!((&ended["pid"], &ended["since"]), (&running[0]["pid"], &running[0]["since"]));
    assert_eq!(ended["said"], json!(["the last words"]));
    assert!(ended["at"].as_str() >= ended["since"].as_str());
    assert_eq!(said["running"], json!([running[1]]));

    assert_eq!(client.call("echo").await.answer().await.text(), "x");
    let said = processes(&admin).await;
    assert_eq!((&said["starts"], &said["last_ended"]), (&json!(3), ended));
    assert_ne!(said["running"][1]["pid"], running[0]["pid"]);
    // As everything there: a web page must not reach it through a reader's browser.
    let foreign = asked(&admin, "evil.example.com", "/processes").await;
    assert!(foreign.status == 403 && !foreign.body.contains("last words"), "{foreign:?}");
    waiting.abort();
    proxy.dies().await;
}

#[tokio::test]
async fn a_process_of_one_caller_shows_its_principal_and_a_failed_start_is_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("deferral.yaml");
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nroutes:\n- {{ upstream: {{ command: [python3, '{SERVER}'], inherit_env: all, instances: {{ per: caller }} }} }}\n- {{ path: /other, upstream: {{ url: 'http://127.0.0.1:1/' }} }}\n"
    );
    std::fs::write(&path, text).expect("it can be written");
    let proxy = Proxy::with(&["--config", path.to_str().expect("a plain path")]);
    let admin = proxy.admin().await;
    assert_eq!(proxy.client().bearing("alice").call("echo").await.answer().await.text(), "x");
    let said = processes(&admin).await;
    assert!(said["running"][0]["caller"].as_str().is_some_and(|caller| caller.len() == 16), "{said}");
    proxy.stops().await;

    let proxy = Proxy::with_admin(&["python3", SERVER, "exits"]);
    let admin = proxy.admin().await;
    assert_eq!(proxy.client().call("echo").await.answer().await.error()["code"], -31001);
    let said = until(&admin, |said| !said["last_ended"].is_null()).await;
    assert_eq!(said["last_ended"]["how"], "exit status: 7");
    proxy.stops().await;
}

#[tokio::test]
async fn an_operator_sees_that_a_process_did_not_come_up_in_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("deferral.yaml");
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nroutes:\n\
         - {{ upstream: {{ command: [python3, '{SERVER}', hangs], inherit_env: all, start_timeout: 200ms }} }}\n"
    );
    std::fs::write(&path, text).expect("it can be written");
    let proxy = Proxy::with(&["--config", path.to_str().expect("a plain path")]);
    let admin = proxy.admin().await;
    assert_eq!(hits(&admin, "upstream.start_timeout").await, 0);
    let hanging = proxy.client().call("echo").await.answer().await.error();
    assert!(hanging["message"].to_string().contains("upstream.start_timeout"), "{hanging}");
    assert_eq!(hits(&admin, "upstream.start_timeout").await, 1);
    proxy.stops().await;
}
