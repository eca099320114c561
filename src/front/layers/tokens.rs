//! Asks clients for the token by which they are known here (`access.tokens`), where there are any.
//!
//! What needs none: a browser's preflight, which carries no credentials (Fetch standard, *CORS-preflight request*)
//! and is answered without asking a server; and the metadata of OAuth, which a client looks for before it has a token.
//! There is none: who may come in is not for an authorization server to say, and a client that was sent to
//! the server's own would come back with a token that is not known here.

use crate::{
    front::{
        answer::{Refusal, refuse},
        arrival::Admitted,
        metadata,
        reply::Body,
        sign_in,
    },
    policy,
};
use futures_util::future::{Either, Ready, ready};
use http::Method;
use hyper::service::Service;
use std::{convert::Infallible, future::Future};

/// Lets in who shows a token, or answers with 401.
#[derive(Debug)]
pub(in crate::front) struct Tokens<S> {
    inner: S,
    tokens: policy::Tokens,
}

type Response = http::Response<Body>;

// === impl Tokens ===

impl<S> Tokens<S> {
    pub(in crate::front) fn new(inner: S, tokens: policy::Tokens) -> Self {
        Self { inner, tokens }
    }

    /// Finds out by its token who sends a request.
    fn identify<B>(&self, admitted: &mut Admitted<B>) -> Result<(), Refusal> {
        let request = &mut admitted.arrival.request;
        if self.tokens.is_empty() || *request.method() == Method::OPTIONS {
            return Ok(());
        }
        let path = request.uri().path();
        let is_sign_in = || *request.method() == Method::GET && sign_in::is_document(path);
        if metadata::is_asked(path) || is_sign_in() {
            return Err(Refusal::NoMetadata { path: path.to_owned() });
        }
        let token = self.tokens.take(request.headers_mut()).map_err(Refusal::NotKnown)?;
        admitted.arrival.line.shows(token);
        Ok(())
    }
}

impl<S, B> Service<Admitted<B>> for Tokens<S>
where
    S: Service<Admitted<B>, Response = Response, Error = Infallible>,
    S::Future: Future<Output = Result<Response, Infallible>>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response, Infallible>>>;

    fn call(&self, mut admitted: Admitted<B>) -> Self::Future {
        match self.identify(&mut admitted) {
            Ok(()) => Either::Left(self.inner.call(admitted)),
            Err(refusal) => Either::Right(ready(Ok(refuse(refusal, admitted.arrival.line)))),
        }
    }
}
