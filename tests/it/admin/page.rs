//! The files of the admin page. `tests/page` runs it in a browser.

use super::Operator;
use crate::proxy::proxy_and_server::start;

const NOWHERE: &str = "http://127.0.0.1:1/mcp";
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
/// What is served where, and what its first words are.
const SERVED: [(&str, &str, &str); 6] = [
    ("/", "text/html; charset=utf-8", "<!doctype html>"),
    ("/app.js", "text/javascript; charset=utf-8", "// The admin page"),
    ("/style.css", "text/css; charset=utf-8", "/* The admin page"),
    ("/icon.svg", "image/svg+xml", "<svg "),
    ("/uplot.js", "text/javascript; charset=utf-8", "/*\nThe MIT License (MIT)"),
    ("/uplot.css", "text/css; charset=utf-8", ".uplot"),
];

#[tokio::test]
async fn each_file_of_the_page_has_its_security_headers() {
    let proxy = start(NOWHERE, &[], &["admin: 127.0.0.1:0"]);
    let operator = Operator::at(proxy.admin.as_ref().expect("there is one").address);
    for (path, media, begins) in SERVED {
        let file = operator.get(path).await;
        assert_eq!(file.status, 200, "{path}");
        assert!(file.body.starts_with(begins), "{path}: {:.40}", file.body);
        for header in [
            &*format!("content-type: {media}\r\n"),
            "cache-control: no-store\r\n",
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; \
             connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
            "x-content-type-options: nosniff\r\n",
            "referrer-policy: no-referrer\r\n",
        ] {
            assert!(format!("{}\r\n", file.head).contains(header), "{path}: {header} in {}", file.head);
        }
        let head = operator.ask("HEAD", path, "", "").await;
        let length = format!("content-length: {}", file.body.len());
        assert!(head.status == 200 && head.body.is_empty() && head.head.contains(&length), "{head:?}");
        let refused = operator.post(path).await;
        assert!(refused.status == 405 && refused.head.contains("allow: GET, HEAD"), "{refused:?}");
    }
    for path in ["/index.html", "/app", "/page/app.js", "//", "/../src/main.rs"] {
        assert_eq!(operator.get(path).await.status, 404, "{path}");
    }
    proxy.stop().await;
}

#[tokio::test]
async fn the_page_itself_needs_no_token() {
    let admin = format!(
        "admin: {{ listen: 0.0.0.0:0, token: {{ file: '{FILES}/config.key' }}, tls: {{ cert: '{FILES}/front/cert.pem', key: '{FILES}/front/key.pem' }} }}"
    );
    let proxy = start(NOWHERE, &[], &[&admin]);
    let port = proxy.admin.as_ref().expect("there is one").address.port();
    let operator = Operator::at(([127, 0, 0, 1], port).into()).over_tls();
    for (path, ..) in SERVED {
        assert_eq!(operator.get(path).await.status, 200, "{path}");
    }
    assert_eq!(operator.get("/tools").await.status, 401);
    proxy.stop().await;
}

#[tokio::test]
async fn nothing_that_the_page_is_made_of_is_elsewhere() {
    let proxy = start(NOWHERE, &[], &["admin: 127.0.0.1:0"]);
    let operator = Operator::at(proxy.admin.as_ref().expect("there is one").address);
    let page = operator.get("/").await.body;
    for named in page.split(['"', '\'']).filter(|text| text.starts_with('/') || text.contains("://")) {
        assert!(SERVED.iter().any(|(path, ..)| *path == named), "{named}");
    }
    assert!(!page.contains(" style=") && !page.contains("<style") && !page.contains("<script>"), "{page}");
    proxy.stop().await;
}
