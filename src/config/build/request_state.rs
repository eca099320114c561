//! The keys of `request_state`.

use crate::config::schema::{
    LoadContext, SecretKey, SecretSource, SectionReader, SpannedValue, list, secret_only, secret_source,
};

/// Reads `request_state`.
pub(super) fn read_request_state(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> Vec<SecretKey> {
    s.key("request_state", "Encryption of `requestState`, which identifies a call: the client sends it back when it repeats the call with input responses. Default: a key generated at start; a state is then invalid after a restart.")
        .read_section("`request_state`", |s| read_state_keys(s, context))
}

/// Reads `keys`. Each invalid or repeated secret key is a problem of its own.
fn read_state_keys(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> Vec<SecretKey> {
    let written = s
        .key("keys", "Keys, each 32 bytes as 64 hex digits or base64. The first encrypts, all decrypt. To rotate: put the new key first, and remove the old one once `questions.park` has passed. Replicas with the same keys recognise each other's states; the retry must nevertheless reach the replica that has the call, and gets an error elsewhere.")
        .read_required(
            list(secret_only("a key", secret_source("a key", "the key")))
                .non_empty("`keys` is empty; add a key, or remove `request_state` to have one generated at start"),
        );
    if written.is_unset() && s.is_written() {
        s.add_problem(s.span, "`request_state` has no `keys`; add them, as in `keys: [{ env: STATE_KEY }]`");
    }
    let read = |SpannedValue { span, value: source }: SpannedValue<_>| {
        Some(SpannedValue::new(span, s.accept(span, SecretSource::read_key(&source, context))?))
    };
    let keys = written.ok().unwrap_or_default().into_iter().filter_map(read).collect();
    s.reject_repeated(keys, |_, line| format!("this key is listed already{line}; remove one of the two"))
}
