//! Keys of `requestState` and tokens: where they are read from, and what is refused.

use super::{TOKEN, parse};
use deferral::internals::config::{self, Config};
use expect_test::expect;
use http::{HeaderMap, header::AUTHORIZATION};
use std::path::Path;

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

#[test]
fn keys_are_read_from_where_they_are_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("new.key"), format!("{KEY}\n")).unwrap();
    std::fs::write(folder.path().join("old.key"), "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=").unwrap();
    let text = "
request_state: { keys: [{ file: new.key }, { file: ./old.key }] }
routes: [{ upstream: { url: 'http://x' } }]
";
    let path = folder.path().join("deferral.yaml");
    let config = config::parse(&path, text).unwrap_or_else(|problems| panic!("{problems}"));
    let keys: Vec<_> = config.state_keys.iter().map(|key| *key.expose()).collect();
    assert_eq!(keys[1], [b'A'; 32]);
    assert_eq!((keys[0][1], keys[0][31], keys.len()), (1, 31, 2));
    assert!(format!("{config:?}").contains("state_keys: [Secret(..), Secret(..)]"));
    assert!(parse("routes: [{ upstream: { url: 'http://x' } }]").state_keys.is_empty());
}

#[test]
fn a_key_that_cannot_be_used_is_named_by_its_place_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("short.key"), &KEY[..60]).unwrap();
    std::fs::write(folder.path().join("good.key"), KEY).unwrap();
    let said = |keys: &str| {
        let text = format!("routes: [{{ upstream: {{ url: 'http://x' }} }}]\nrequest_state: {keys}\n");
        let path = folder.path().join("deferral.yaml");
        let problems = config::parse(&path, &text).expect_err(keys).to_string();
        problems.replace(&*folder.path().to_string_lossy(), "~")
    };
    expect![[r#"
        ~/deferral.yaml:2:25: the file `~/no.key` cannot be read: No such file or directory (os error 2)
        ~/deferral.yaml:2:43: the environment variable `DEFERRAL_TEST_UNSET` is not set
        ~/deferral.yaml:2:73: the file `~/short.key` has 60 hex digits; a key is 32 bytes as 64 hex digits or base64, generated for example by `openssl rand -hex 32`
        ~/deferral.yaml:2:94: the environment variable `PATH` is neither hex digits nor base64; a key is 32 bytes as 64 hex digits or base64, generated for example by `openssl rand -hex 32`
    "#]]
    .assert_eq(&format!(
        "{}\n",
        said("{ keys: [{ file: no.key }, { env: DEFERRAL_TEST_UNSET }, { file: short.key }, { env: PATH }] }")
    ));
    for (keys, part) in [
        ("{ keys: [{ file: good.key }, { file: ./good.key }] }", "2:45: this key is listed already (line 2)"),
        ("{ keys: [] }", "2:24: `keys` is empty"),
        ("{}", "2:16: `request_state` has no `keys`"),
        ("{ keys: [{}] }", "2:25: the key has neither `file` nor `env`"),
        ("{ keys: [{ file: good.key, env: X }] }", "2:25: the key has both `file` and `env`"),
        ("{ keys: [{ env: 'A=B' }] }", "2:32: `env` must be the name of an environment variable"),
        (&format!("{{ keys: [{KEY}] }}"), "2:25: a key must not be written in this file; name its source"),
        (
            &format!("{{ keys: [{{ env: {KEY} }}] }}"),
            "2:32: `env` must name a variable that holds the key, not",
        ),
        (
            &format!("{{ keys: [{{ file: {KEY} }}] }}"),
            "2:33: `file` must name a file that holds the key, not",
        ),
    ] {
        let said = said(keys);
        assert!(said.contains(part), "{keys}: {said}");
    }
    for keys in [format!("[{KEY}]"), format!("[{{ env: {KEY} }}]"), format!("[{{ file: {KEY} }}]")] {
        assert!(!said(&format!("{{ keys: {keys} }}")).contains(KEY), "{keys}");
    }
    assert!(!said("{ keys: [{ env: PATH }] }").contains(&std::env::var("PATH").unwrap()));
}

/// What is said of a file with these tokens of clients.
fn said_of_tokens(folder: &Path, tokens: &str) -> Result<Config, String> {
    let text = format!("routes: [{{ upstream: {{ url: 'http://x' }} }}]\naccess: {{ tokens: {tokens} }}\n");
    config::parse(&folder.join("deferral.yaml"), &text)
        .map_err(|problems| problems.to_string().replace(&*folder.to_string_lossy(), "~"))
}

#[test]
fn tokens_are_read_from_files_and_variables_and_a_name_may_have_several() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("old"), format!("{TOKEN}\n")).unwrap();
    std::fs::write(folder.path().join("new"), KEY).unwrap();
    let config = said_of_tokens(folder.path(), "[{ name: alice, file: old }, { name: alice, file: ./new }]");
    let config = config.unwrap_or_else(|problems| panic!("{problems}"));
    let known = |token: &str| {
        let authorization = format!("Bearer {token}").try_into().expect("a header value");
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, authorization)]);
        config.front.tokens.authenticate(&mut headers).ok().map(|token| token.name().to_owned())
    };
    assert_eq!((known(TOKEN).as_deref(), known(KEY).as_deref()), (Some("alice"), Some("alice")));
    assert_eq!(known(&format!("{TOKEN}\n").trim_end()[1..]), None);
    let shown = format!("{config:?}");
    assert!(shown.contains("alice") && !shown.contains(TOKEN) && !shown.contains(KEY), "{shown}");
    assert!(parse("routes: [{ upstream: { url: 'http://x' } }]").front.tokens.is_empty());
}

#[test]
fn a_token_that_cannot_be_used_is_named_by_its_place_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("good", TOKEN),
        ("again", &format!("{TOKEN}\r\n")),
        ("empty", "\n"),
        ("short", &TOKEN[..15]),
        ("odd", "correct horse battery staple"),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let said = |tokens: &str| said_of_tokens(folder.path(), tokens).expect_err(tokens);
    expect![[r#"
        ~/deferral.yaml:2:20: the file `~/none` cannot be read: No such file or directory (os error 2)
        ~/deferral.yaml:2:49: the file `~/empty` is empty; a token has at least 16 letters, digits and `-._~+/`, generated for example by `openssl rand -hex 32`
        ~/deferral.yaml:2:79: the file `~/short` has 15 characters; a token has at least 16 letters, digits and `-._~+/`, generated for example by `openssl rand -hex 32`
        ~/deferral.yaml:2:109: the file `~/odd` has a character that is not allowed in a token; a token has at least 16 letters, digits and `-._~+/`, generated for example by `openssl rand -hex 32`
        ~/deferral.yaml:2:137: the environment variable `DEFERRAL_TEST_UNSET` is not set
    "#]]
    .assert_eq(&format!(
        "{}\n",
        said("[{ name: alice, file: none }, { name: alice, file: empty }, { name: alice, file: short }, { name: alice, file: odd }, { name: alice, env: DEFERRAL_TEST_UNSET }]")
    ));
    for (tokens, part) in [
        ("[]", "2:19: `tokens` is empty; add a token, or remove the key"),
        (
            "[{ name: a, file: good }, { name: a, file: again }]",
            "2:45: this token is listed already (line 2)",
        ),
        ("[{ name: a, file: good }, { name: b, file: good }]", "2:45: this token is listed already (line 2)"),
        ("[{ file: good }]", "2:20: the token has no `name`"),
        ("[{ name: '', file: good }]", "2:28: `name` must be 1 to 64 letters"),
        (&format!("[{{ name: {}, file: good }}]", "n".repeat(65)), "2:28: `name` must be 1 to 64 letters"),
        ("[{ name: 'a b', file: good }]", "2:28: `name` must be 1 to 64 letters"),
        ("[{ name: \"a\\nb\", file: good }]", "2:28: `name` must be 1 to 64 letters"),
        ("[{ name: a }]", "2:20: the token has neither `file` nor `env`"),
        ("[{ name: a, file: good, env: X }]", "2:20: the token has both `file` and `env`"),
        ("[{ name: a, env: 'A=B' }]", "2:36: `env` must be the name of an environment variable"),
        ("[{ name: a, token: correct-horse-battery-staple }]", "2:31: unknown key `token` in a token"),
        (TOKEN, "2:19: `tokens` must be a list"),
        (&format!("[{TOKEN}]"), "2:20: a token must not be written in this file; name its source"),
        (
            &format!("[{{ name: {KEY}, file: good }}]"),
            "2:28: `name` must be a name for the token, not the token",
        ),
        (
            &format!("[{{ name: a, env: {KEY} }}]"),
            "2:36: `env` must name a variable that holds the token, not",
        ),
        (&format!("[{{ name: a, file: {KEY} }}]"), "2:37: `file` must name a file that holds the token, not"),
    ] {
        let said = said(tokens);
        assert!(said.contains(part), "{tokens}: {said}");
        assert!(!said.contains(TOKEN) && !said.contains(KEY), "{tokens}: {said}");
    }
}

#[test]
fn clients_with_tokens_are_distinguished_by_them() {
    let doubts = |access: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deferral.yaml");
        std::fs::write(folder.path().join("token"), TOKEN).expect("it can be written");
        let text = format!("listen: 0.0.0.0:80\n{access}routes: [{{ upstream: {{ url: 'http://x' }} }}]\n");
        std::fs::write(&path, text).expect("it can be written");
        config::check(&path).expect("it is right").1.map(|doubts| doubts.to_string())
    };
    assert!(doubts("").expect("a doubt").contains("all clients without `Authorization` are one principal"));
    assert_eq!(doubts("access: { tokens: [{ name: alice, file: token }] }\n"), None);
}
