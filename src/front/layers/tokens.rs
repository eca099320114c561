//! Authenticates clients by token (`access.tokens`), where there are any.
//!
//! Two requests need none: a browser's preflight, which carries no credentials (Fetch standard,
//! *CORS-preflight request*) and is answered without a request to the server; and OAuth metadata, which a
//! client requests before it has a token. The latter is answered with 404: no authorization server issues
//! these tokens, and a client that was led to the upstream's own would return with a token that the proxy
//! does not know.

use crate::{
    front::{
        incoming::AdmittedRequest,
        metadata,
        reply::FrontBody,
        responses::{RefusalReason, refuse},
        sign_in,
    },
    policy,
};
use futures_util::future::{Either, Ready, ready};
use http::Method;
use hyper::service::Service;
use std::{convert::Infallible, future::Future};

/// Layer that admits requests with a token, or answers them with 401.
#[derive(Debug)]
pub(in crate::front) struct TokenAuth<S> {
    inner: S,
    tokens: policy::TokenSet,
}

type TokenResponse = http::Response<FrontBody>;

// === impl TokenAuth ===

impl<S> TokenAuth<S> {
    pub(in crate::front) fn new(inner: S, tokens: policy::TokenSet) -> Self {
        Self { inner, tokens }
    }

    /// Takes the token out of the headers of a request, and records it in the access log entry.
    fn authenticate<B>(&self, admitted: &mut AdmittedRequest<B>) -> Result<(), RefusalReason> {
        let request = &mut admitted.incoming.request;
        if self.tokens.is_empty() || *request.method() == Method::OPTIONS {
            return Ok(());
        }
        let path = request.uri().path();
        let is_sign_in_document = || *request.method() == Method::GET && sign_in::is_document(path);
        if metadata::is_metadata_path(path) || is_sign_in_document() {
            return Err(RefusalReason::NoMetadata { path: path.to_owned() });
        }
        let token =
            self.tokens.authenticate(request.headers_mut()).map_err(RefusalReason::Unauthenticated)?;
        admitted.incoming.entry.set_token(token);
        Ok(())
    }
}

impl<S, B> Service<AdmittedRequest<B>> for TokenAuth<S>
where
    S: Service<AdmittedRequest<B>, Response = TokenResponse, Error = Infallible>,
    S::Future: Future<Output = Result<TokenResponse, Infallible>>,
{
    type Response = TokenResponse;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<TokenResponse, Infallible>>>;

    fn call(&self, mut admitted: AdmittedRequest<B>) -> Self::Future {
        match self.authenticate(&mut admitted) {
            Ok(()) => Either::Left(self.inner.call(admitted)),
            Err(refusal) => Either::Right(ready(Ok(refuse(refusal, admitted.incoming.entry)))),
        }
    }
}
