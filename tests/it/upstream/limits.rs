//! Limits of what a server sends: messages of one response, queued notifications, input requests.

use super::{MUTE, UpstreamAndServer, elicitation, request};
use crate::support::legacy_server::{Canned, Options, PATIENCE, Seen};
use deferral::internals::{
    dialect::{Credentials, Principal},
    protocol::{ListKind, Method},
    upstream::{CallError, ChangeNotification, Upstream, UpstreamEvent},
};
use futures_util::StreamExt;
use serde_json::json;
use tokio::time::timeout;

#[tokio::test]
async fn messages_in_one_response_are_bounded() {
    let path = "/.well-known/oauth-protected-resource/mcp";
    let hook =
        move |seen: &Seen| (seen.path == path).then(|| Canned::status(200).body("x".repeat((1 << 20) + 1)));
    let world = UpstreamAndServer::new(Options::default().hook(hook)).await;
    let answered = async |id, canned| {
        let mut call = world.call(id);
        world.server.call().await.canned(canned);
        call.lost().await
    };
    // A page that an error comes with is read so far, and shown in short.
    let lost = answered(1, Canned::status(500).body("x".repeat(200_000))).await;
    assert!(matches!(&lost, CallError::Status { detail, .. } if detail == "Internal Server Error"), "{lost}");
    let lost = answered(2, Canned::status(500).body("x".repeat(1000))).await;
    assert!(matches!(&lost, CallError::Status { detail, .. } if detail.len() == 200), "{lost}");
    let many = (0..130).fold(Canned::json(200, &json!({})), |canned, _| canned.header("x-many", "y"));
    let lost = answered(3, many).await;
    assert!(matches!(lost, CallError::Invalid(_)), "{lost}");
    let document = world.origin().fetch(path, &Credentials::default()).await;
    assert!(matches!(document.map(drop), Err(CallError::TooLarge { limit: 1_048_576 })));
    // It is heard again when it speaks as others do.
    let mut call = world.call(4);
    world.answer().await;
    call.result().await;
}

#[tokio::test]
async fn unread_notifications_are_bounded() {
    use tokio::sync::broadcast::error::{RecvError, TryRecvError};
    const KEPT: usize = 256;
    let world = UpstreamAndServer::new(Options::default()).await;
    let (mut idle, mut busy) = (
        world.upstream.watch(Principal::ANONYMOUS).subscribe(),
        world.upstream.watch(Principal::ANONYMOUS).subscribe(),
    );
    let mut replies = world.upstream.call(request(1, Method::ToolsCall, MUTE));
    let arrived = tokio::select! {
        call = world.server.call() => call,
        _ = replies.next() => panic!("nobody has answered"),
    };
    let listener = world.server.listener("s1").await;
    for n in 0..2000 {
        listener.notify("notifications/message", json!({ "data": n }));
        listener.notify("notifications/tools/list_changed", json!({}));
    }
    listener.notify("notifications/prompts/list_changed", json!({}));
    loop {
        match timeout(PATIENCE, busy.recv()).await.expect("it is heard") {
            Ok(ChangeNotification::ListChanged(ListKind::Prompts)) => break,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => panic!("the upstream is there"),
        }
    }
    // Others have their way meanwhile.
    let mut list = world.list(2);
    world.answer().await;
    list.result().await;

    assert!(matches!(idle.try_recv(), Err(TryRecvError::Lagged(_))), "it is told that it missed some");
    let mut reports = 0;
    while idle.try_recv().is_ok() {
        reports += 1;
    }
    assert_eq!(reports, KEPT);
    arrived.result(json!({}));
    let mut notices = 0;
    loop {
        match timeout(PATIENCE, replies.next()).await.expect("it goes on") {
            Some(UpstreamEvent::Notification(_)) => notices += 1,
            Some(UpstreamEvent::Final(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(notices, KEPT);
}

#[tokio::test]
async fn a_call_with_endless_input_requests_fails_and_other_calls_are_served() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut asking = world.ask(1);
    let events = world.server.call().await.stream();
    for n in 0..300 {
        events.send(&elicitation(json!(n)));
    }
    let mut questions = Vec::new();
    let lost = loop {
        match asking.next().await {
            Some(UpstreamEvent::ServerRequest(question)) => questions.push(question),
            Some(UpstreamEvent::Lost(lost)) => break lost,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(&lost, CallError::Invalid(why) if why.contains("256 input requests")), "{lost}");
    assert!(questions.len() <= 256, "{}", questions.len());
    let mut call = world.ask(2);
    world.answer().await;
    call.result().await;
}
