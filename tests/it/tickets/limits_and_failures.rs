//! Limits and store failures with tickets: the model gets the message, as it is the reader of the tool's result.

use super::{IMPATIENT, SOON, legacy_clients, modern_clients, tools};
use crate::{
    proxy::proxy_and_server::Setup,
    support::faulty_store::{FaultyStore, Op},
};
use serde_json::Value;

const NAMED: &str = "tickets: { for: [{ header: X-Agent, value: \"1\", after: 50ms, wait: 10ms }] }";
const FEW: &str = "limits: { polls_per_second: 2 }";

fn setup() -> Setup {
    Setup::new().server(|options| options.tools = Some(tools()))
}

/// The message to a model that may continue with its ticket.
fn is_told(result: &Value, reason: &str) -> bool {
    let words = result["content"][0]["text"].as_str().expect("words");
    let is_busy = words.contains(reason);
    if is_busy {
        assert_eq!(result["isError"], true);
        assert!(words.contains("again with the same ticket"), "{words}");
    }
    is_busy
}

#[tokio::test]
async fn a_model_over_the_poll_limit_gets_the_limit_and_a_request_to_retry() {
    let world = setup().route(SOON).route(IMPATIENT).top(FEW).start().await;
    let client = legacy_clients::holder(&world).await;
    let (_call, held) = legacy_clients::deferred(&world.server, &client).await;
    for _ in 0..200 {
        if is_told(&legacy_clients::result_of(&client, &held).await, "limits.polls_per_second") {
            return;
        }
    }
    panic!("never told");
}

#[tokio::test]
async fn the_model_of_a_modern_client_gets_the_same_error() {
    let world = setup().route(NAMED).top(FEW).start().await;
    let client = modern_clients::holder(&world);
    let (_call, held) = modern_clients::deferred(&world, &client).await;
    for _ in 0..200 {
        let result = modern_clients::use_ticket(&client, "deferral_result", &held).await.result();
        assert_eq!(result["resultType"], "complete");
        if is_told(&result, "limits.polls_per_second") {
            return;
        }
    }
    panic!("never told");
}

#[tokio::test]
async fn a_tool_that_cannot_be_stopped_as_the_store_fails_can_be_later() {
    let store = FaultyStore::new();
    let world = setup().route(SOON).route(IMPATIENT).store(&store).start().await;
    let client = legacy_clients::holder(&world).await;
    let (_call, held) = legacy_clients::deferred(&world.server, &client).await;
    store.fails(&[Op::Swap]);
    let told = legacy_clients::use_ticket(&client, "deferral_cancel", &held).await.result();
    assert!(is_told(&told, "the task store does not respond"), "{told}");
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
    store.works();
    let told = legacy_clients::use_ticket(&client, "deferral_cancel", &held).await.result();
    assert!(told["content"][0]["text"].as_str().expect("words").contains("asked to stop"), "{told}");
}
