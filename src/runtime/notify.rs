//! Notifications to the service manager that started the process: systemd's protocol (`sd_notify(3)`).
//!
//! A unit with `Type=notify` counts as started once it has sent `READY=1`. Without `NOTIFY_SOCKET` nothing is
//! sent.

use rustix::time::{ClockId, clock_gettime};
use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::net::UnixDatagram,
};

/// The environment variable with the path of the service manager's socket. Stdio servers do not inherit it,
/// because they are not the service.
pub const SOCKET: &str = "NOTIFY_SOCKET";

/// Reports that clients are served, after the start or after [`reloading`].
pub fn ready() {
    notify("READY=1");
}

/// Reports that the configuration is being read again. Must be followed by [`ready`], whether something has
/// changed or not.
pub fn reloading() {
    // `Type=notify-reload` compares this time with that of earlier reloads.
    let now = clock_gettime(ClockId::Monotonic);
    let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// Reports that the process is shutting down.
pub fn stopping() {
    notify("STOPPING=1");
}

fn notify(state: &str) {
    let Some(socket) = env::var_os(SOCKET).filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        // The error is only logged: the service manager times out by itself, and clients are served
        // nevertheless.
        tracing::warn!(
            target: "deferral",
            event = "not_notified",
            %error,
            "cannot notify the service manager: {SOCKET} is {}",
            OsString::from(&socket).display(),
        );
    }
}

/// Sends one datagram to the socket at a path, or, behind `@`, with an abstract name.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    match socket.as_encoded_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => {
            use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
            sender.send_to_addr(state.as_bytes(), &SocketAddr::from_abstract_name(name)?)?
        }
        _ => sender.send_to(state.as_bytes(), socket)?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(manager: &UnixDatagram) -> String {
        let mut datagram = [0; 256];
        let length = manager.recv(&mut datagram).expect("something was sent");
        String::from_utf8(datagram[..length].to_vec()).expect("it is text")
    }

    #[test]
    fn a_socket_at_a_path_is_notified() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("the name is free");
        send(path.as_os_str(), "READY=1").expect("it is there");
        assert_eq!(received(&manager), "READY=1");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_socket_with_an_abstract_name_is_notified() {
        use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
        let name = format!("deferral-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let manager = UnixDatagram::bind_addr(&address).expect("the name is free");
        send(format!("@{name}").as_ref(), "STOPPING=1").expect("it is there");
        assert_eq!(received(&manager), "STOPPING=1");
    }

    #[test]
    fn a_missing_socket_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(send(folder.path().join("none").as_os_str(), "READY=1").is_err());
    }
}
