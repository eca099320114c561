//! `requestState`: whatever a client sends back, only what was sealed opens, for the request it was sealed for.

use bytes::Bytes;
use deferral::internals::{
    bridge::resume::{RequestBinding, RequestState, RequestStateError, RetryTarget, SealKeyring},
    dialect::Principal,
    protocol::{Method, Payload, Timestamp},
    task::TaskId,
};
use serde_json::Value;

const NOW: Timestamp = Timestamp::from_millis(1_000);
const LATER: Timestamp = Timestamp::from_millis(2_000);

/// The state, up to the first line break, and the parameters it came with.
pub fn target(sent: &[u8]) {
    let at = sent.iter().position(|byte| *byte == b'\n').unwrap_or(sent.len());
    let (text, params) = sent.split_at(at);
    let params = Bytes::copy_from_slice(params);
    let binding = RequestBinding::for_request(
        Principal::ANONYMOUS,
        "/mcp",
        &Method::ToolsCall,
        None,
        Some(&Payload::read(params.clone())),
    );
    let keyring = SealKeyring::new([1; 32], &[[2; 32]]);

    let entropy: [u8; 16] = std::array::from_fn(|at| sent.get(at).copied().unwrap_or_default());
    let resumes = if sent.len().is_multiple_of(2) {
        RetryTarget::Restart
    } else {
        RetryTarget::Parked(TaskId::from_entropy(entropy))
    };
    let round = u32::from_be_bytes([entropy[0], entropy[1], entropy[2], entropy[3]]);
    let state = RequestState { target: resumes, node: u64::from(round), round, expires: LATER, binding };
    let nonce = std::array::from_fn(|at| entropy[15 - at]);
    let sealed = keyring.seal(&state, nonce);

    if let Ok(text) = std::str::from_utf8(text) {
        // What a client makes up is none, unless it is what it got.
        let opened = keyring.open(text, || panic!("a digest is made of what anybody sends"), NOW);
        assert_eq!(opened, Err(RequestStateError::Malformed));
    }
    assert_eq!(keyring.open(&sealed, || binding, NOW).as_ref(), Ok(&state));
    assert_eq!(keyring.open(&sealed, || binding, LATER), Err(RequestStateError::Expired));
    let rolled = SealKeyring::new([3; 32], &[[2; 32], [1; 32]]);
    assert_eq!(rolled.open(&sealed, || binding, NOW), Ok(state));
    assert_eq!(
        SealKeyring::new([2; 32], &[]).open(&sealed, || binding, NOW),
        Err(RequestStateError::Malformed)
    );

    // Another request: a member more, which is not one of those that change from round to round.
    let other = Bytes::from([&b"[0,"[..], &params, b"]"].concat());
    let foreign = RequestBinding::for_request(
        Principal::ANONYMOUS,
        "/mcp",
        &Method::ToolsCall,
        None,
        Some(&Payload::read(other)),
    );
    assert_eq!(keyring.open(&sealed, || foreign, NOW), Err(RequestStateError::Foreign));

    // One character another, one more, one less.
    let at = usize::from(entropy[4]) % sealed.len();
    for with in ["A", "b", "-", "_", "=", " ", "é", "", "AA"] {
        let altered = [&sealed[..at], with, &sealed[at + 1..]].concat();
        if altered != sealed {
            let opened = keyring.open(&altered, || binding, NOW);
            assert_eq!(opened, Err(RequestStateError::Malformed), "{sealed} {altered}");
        }
    }
    spelling_does_not_matter(&params, binding);
}

/// A client may write its request anew for its retry.
fn spelling_does_not_matter(params: &Bytes, binding: RequestBinding) {
    let Ok(value) = serde_json::from_slice::<Value>(params) else { return };
    // A number that serde_json rounds is another afterwards, and so is an object whose members it merges.
    // Nothing else grows shorter but what is spelled with escapes.
    if is_rounded(&value) || dense(&serde_json::to_vec(&value).expect("JSON")) < dense(params) {
        return;
    }
    let anew = serde_json::to_vec_pretty(&value).expect("a value is JSON");
    let anew = RequestBinding::for_request(
        Principal::ANONYMOUS,
        "/mcp",
        &Method::ToolsCall,
        None,
        Some(&Payload::read(anew.into())),
    );
    assert_eq!(anew, binding, "{value}");
}

/// Whether a number in it may have lost digits: it is held as a float, as integers beyond 64 bits are too.
fn is_rounded(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(elements) => elements.iter().any(is_rounded),
        Value::Object(members) => members.values().any(is_rounded),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// How many bytes are no white space, be it in strings or around them.
fn dense(json: &[u8]) -> usize {
    json.iter().filter(|byte| !byte.is_ascii_whitespace()).count()
}
