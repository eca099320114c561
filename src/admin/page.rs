//! The admin page: static files from `page/`, without a build step.
//!
//! The page shows untrusted text (names of tools, messages), so its headers allow only these files to run,
//! and only requests to this address.

use super::response::{AdminResponse, text_response};
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
};

/// Security headers of the page. `tests/page/fake.mjs` has the same.
const SECURITY_HEADERS: [(HeaderName, &str); 3] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
];

/// A file of the admin page, without confidential data.
pub(super) struct PageFile {
    media: &'static str,
    body: &'static [u8],
}

/// The page itself, `/`.
pub(super) static INDEX: PageFile =
    PageFile { media: "text/html; charset=utf-8", body: include_bytes!("page/index.html") };

/// The script of the page.
pub(super) static SCRIPT: PageFile =
    PageFile { media: "text/javascript; charset=utf-8", body: include_bytes!("page/app.js") };

/// The style sheet of the page.
pub(super) static STYLE: PageFile =
    PageFile { media: "text/css; charset=utf-8", body: include_bytes!("page/style.css") };

/// The icon of the page.
pub(super) static ICON: PageFile = PageFile { media: "image/svg+xml", body: include_bytes!("page/icon.svg") };

/// uPlot 1.6.32 as published, preceded by its licence, which must accompany it.
pub(super) static PLOT: PageFile = PageFile {
    media: "text/javascript; charset=utf-8",
    body: concat!("/*\n", include_str!("page/uPlot.LICENSE"), "*/\n", include_str!("page/uPlot.iife.min.js"))
        .as_bytes(),
};

/// The style sheet of uPlot.
pub(super) static PLOT_STYLE: PageFile =
    PageFile { media: "text/css; charset=utf-8", body: include_bytes!("page/uPlot.min.css") };

// === impl PageFile ===

impl PageFile {
    /// Responds with the file and the security headers of the page.
    pub(super) fn respond(&self) -> AdminResponse {
        let mut response = text_response(StatusCode::OK, self.media, Bytes::from_static(self.body));
        for (name, value) in SECURITY_HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
