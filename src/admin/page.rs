//! The page for operators: files that are served as they stand in `page/`. Nothing builds them.
//!
//! What they show was said by strangers (names of tools, messages), so the browser is told that nothing but these
//! files may run, and that nothing but this address may be asked.

use super::response::{AdminResponse, text};
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
};

/// What a browser may do with them. `tests/page/fake.mjs` has the same.
const HEADERS: [(HeaderName, &str); 3] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
];

/// A file of the page. There is nothing in it that is anybody's.
pub(super) struct PageFile {
    media: &'static str,
    body: &'static [u8],
}

pub(super) static INDEX: PageFile =
    PageFile { media: "text/html; charset=utf-8", body: include_bytes!("page/index.html") };

pub(super) static SCRIPT: PageFile =
    PageFile { media: "text/javascript; charset=utf-8", body: include_bytes!("page/app.js") };

pub(super) static STYLE: PageFile =
    PageFile { media: "text/css; charset=utf-8", body: include_bytes!("page/style.css") };

pub(super) static ICON: PageFile = PageFile { media: "image/svg+xml", body: include_bytes!("page/icon.svg") };

/// uPlot 1.6.32 as it is published, behind its licence, which has to be wherever it is.
pub(super) static PLOT: PageFile = PageFile {
    media: "text/javascript; charset=utf-8",
    body: concat!("/*\n", include_str!("page/uPlot.LICENSE"), "*/\n", include_str!("page/uPlot.iife.min.js"))
        .as_bytes(),
};

pub(super) static PLOT_STYLE: PageFile =
    PageFile { media: "text/css; charset=utf-8", body: include_bytes!("page/uPlot.min.css") };

// === impl File ===

impl PageFile {
    pub(super) fn answer(&self) -> AdminResponse {
        let mut answer = text(StatusCode::OK, self.media, Bytes::from_static(self.body));
        for (name, value) in HEADERS {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}
