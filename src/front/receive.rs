//! A request's body, bounded in bytes and time.

use super::{Front, answer::Refusal};
use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use std::pin::pin;
use tokio::time::timeout;

/// How much is set aside on a client's word alone.
const TRUSTED: u64 = 64 << 10;

/// Takes the whole body, of at most `limit` bytes, into memory of its own.
///
/// The copy is deliberate. What hyper hands out is a slice of the connection's read buffer, and a
/// call is held for as long as its server takes: without the copy each waiting call would keep a
/// second buffer of 8 KiB or more, to save copying the few hundred bytes most calls have.
///
/// # Errors
/// [`Refusal::TooLarge`], as soon as that is known; [`Refusal::TooSlow`]; [`Refusal::Broken`].
pub(super) async fn receive<B: Body<Data = Bytes>>(
    front: &Front,
    body: B,
    limit: usize,
) -> Result<Bytes, Refusal> {
    if body.size_hint().lower() > limit as u64 {
        return Err(Refusal::TooLarge { limit });
    }
    timeout(front.timeouts.read_body, collect(body, limit))
        .await
        .unwrap_or(Err(Refusal::TooSlow { limit: front.timeouts.read_body }))
}

async fn collect<B: Body<Data = Bytes>>(body: B, limit: usize) -> Result<Bytes, Refusal> {
    let expected = body.size_hint().lower().min(TRUSTED);
    let mut whole = Vec::with_capacity(usize::try_from(expected).expect("trusted sizes are small"));
    let mut body = pin!(body);
    while let Some(frame) = body.frame().await {
        // Trailers mean nothing to us.
        let Ok(data) = frame.map_err(|_| Refusal::Broken)?.into_data() else { continue };
        if whole.len() + data.len() > limit {
            return Err(Refusal::TooLarge { limit });
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.into())
}
