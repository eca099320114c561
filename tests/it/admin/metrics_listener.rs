//! The listener for metrics.

use super::Operator;
use crate::{
    proxy::proxy_and_server::start,
    support::{
        legacy_server::{LegacyServer, Options, ReservedPort},
        modern_client::Client,
    },
};
use serde_json::json;

#[tokio::test]
async fn scrapers_get_metrics_without_a_token_and_nothing_else() {
    let server = LegacyServer::start(Options { tools: Some(json!([])), ..Options::default() }).await;
    let proxy = start(&server.url(), &[], &["admin: off", "metrics: 127.0.0.1:0"]);
    let scraper = Operator::at(proxy.metrics.as_ref().expect("there is one").address);
    Client::new(proxy.addresses[0]).ask("tools/list", json!({})).await;
    // By whatever name it is called.
    for headers in ["", "host: deferral.monitoring.svc:9464\r\n"] {
        let answer = scraper.ask("GET", "/metrics", headers, "").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(
            answer.head.to_ascii_lowercase().contains("content-type: text/plain; version=0.0.4"),
            "{}",
            answer.head
        );
        assert!(answer.body.contains("deferral_build_info{") && answer.body.contains("deferral_limit{"));
    }
    assert_eq!(scraper.ask("HEAD", "/metrics", "", "").await.status, 200);
    for path in ["/", "/live", "/ready", "/tasks", "/config", "/events", "/metrics/", "/mcp"] {
        let answer = scraper.get(path).await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.error().contains("served here: /metrics"), "{answer:?}");
    }
    assert_eq!(scraper.post("/metrics").await.status, 405);
    assert_eq!(scraper.post("/reload").await.status, 404);
    let page = scraper.ask("GET", "/metrics", "origin: http://localhost\r\n", "").await;
    assert_eq!(page.status, 403, "{page:?}");
    proxy.stop().await;
}

#[tokio::test]
async fn metrics_have_no_listener_unless_configured() {
    let nobody = ReservedPort::new();
    let proxy = start(&nobody.url(), &[], &["admin: 127.0.0.1:0"]);
    assert!(proxy.metrics.is_none());
    let operator = Operator::at(proxy.admin.as_ref().expect("there is one").address);
    assert_eq!(operator.get("/metrics").await.status, 200, "the operator's address has them as before");
    proxy.stop().await;
}
