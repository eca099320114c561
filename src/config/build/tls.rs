//! The keys of `tls` of the listeners, and private keys.

use crate::{
    config::schema::{
        LoadContext, SecretSource, SectionReader, Setting, SpannedValue, ValueResult, key_location, text,
    },
    front::{PrivateKey, TlsError, TlsPaths},
};

/// Reads the certificate chain and private key of an HTTPS listener. `None` if they are absent or invalid.
pub(super) fn read_tls(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> Option<TlsPaths> {
    let cert = s
        .key("cert", "PEM file of the certificate chain, the server's own certificate first.")
        .read_required(text());
    let key = s
        .key("key", "Private key of the first certificate: its PEM file, or `{ env: NAME }`.")
        .read_required(key_location());
    for (key, unset) in [("cert", cert.is_unset()), ("key", key.is_unset())] {
        if unset && s.is_written() {
            s.add_problem(s.span, format!("`tls` has no `{key}`; name a PEM file"));
        }
    }
    let (Setting::Valid(cert), Some(key)) = (cert, private_key(key, context, s)) else { return None };
    let paths = TlsPaths { cert: context.folder.join(cert.value), key: key.value };
    if context.checks_files
        && let Err(error) = paths.check()
    {
        let span = match &error {
            TlsError::Cert { .. } | TlsError::NoCert { .. } => cert.span,
            TlsError::Key { .. } => key.span,
            TlsError::Pair { .. } => s.span,
        };
        s.add_problem(span, error.to_string());
    }
    Some(paths)
}

/// Returns the location of a certificate's private key, and its position in the file; `None` if the key is
/// absent or invalid.
pub(super) fn private_key(
    written: Setting<SecretSource>,
    context: LoadContext<'_>,
    s: &mut SectionReader<'_, '_>,
) -> Option<SpannedValue<PrivateKey>> {
    let Setting::Valid(SpannedValue { span, value: source }) = written else { return None };
    let key = s.accept(span, to_private_key(&source, context))?;
    Some(SpannedValue::new(span, key))
}

/// A file is read only when the key is needed.
fn to_private_key(source: &SecretSource, context: LoadContext<'_>) -> ValueResult<PrivateKey> {
    Ok(match source.resolve(context) {
        SecretSource::File(path) => PrivateKey::File(path),
        env @ SecretSource::Env(_) => PrivateKey::inline(env.read_text(context)?, env.to_string()),
    })
}
