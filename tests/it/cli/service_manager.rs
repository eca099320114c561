//! Notifications to the service manager (`NOTIFY_SOCKET`).

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Stdio},
};

fn serve(config: &Path, socket: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_deferral"))
        .arg("--config")
        .arg(config)
        .env("NOTIFY_SOCKET", socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts")
}

fn heard(by: &UnixDatagram) -> String {
    let mut datagram = [0; 256];
    let length = by.recv(&mut datagram).expect("something was sent");
    String::from_utf8(datagram[..length].to_vec()).expect("it is text")
}

/// From the start to the end, with a server over stdio that writes down what it inherits.
fn is_told(manager: &UnixDatagram, socket: &str, folder: &Path) {
    let path = folder.join("deferral.yaml");
    let server = "env > half; mv half environment; cat";
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: off\nroutes: [{{ upstream: {{ command: [sh, -c, '{server}'], inherit_env: all, start: eager, cwd: '{}' }} }}]\n",
        folder.display()
    );
    fs::write(&path, text).expect("it can be written");
    let mut proxy = serve(&path, socket);
    assert_eq!(heard(manager), "READY=1");
    let inherited = loop {
        if let Ok(text) = fs::read_to_string(folder.join("environment")) {
            break text;
        }
    };
    assert!(inherited.contains("PATH="), "{inherited}");
    assert!(!inherited.contains("NOTIFY_SOCKET="), "a server is not the service: {inherited}");
    super::signal(&proxy, "-TERM");
    assert_eq!(heard(manager), "STOPPING=1");
    assert_eq!(proxy.wait().expect("it ends").code(), Some(0));
}

#[test]
fn the_service_manager_is_notified_of_ready_and_stopping() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("nobody has it");
    is_told(&manager, socket.to_str().expect("a plain path"), folder.path());
}

#[test]
#[cfg(target_os = "linux")]
fn an_abstract_socket_is_notified_too() {
    use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().to_str().expect("a plain path");
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    let manager = UnixDatagram::bind_addr(&address).expect("nobody has it");
    is_told(&manager, &format!("@{name}"), folder.path());
}

#[test]
fn a_proxy_whose_service_manager_cannot_be_notified_serves_and_logs_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("none");
    let path = folder.path().join("deferral.yaml");
    fs::write(&path, "listen: 127.0.0.1:0\nadmin: off\nroutes: [{ upstream: { command: [cat] } }]\n")
        .expect("it can be written");
    let mut proxy = Command::new(env!("CARGO_BIN_EXE_deferral"))
        .arg("--config")
        .arg(&path)
        .env("NOTIFY_SOCKET", &socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    crate::support::program::where_it_listens(&mut proxy);
    super::signal(&proxy, "-TERM");
    let output = proxy.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    let log = String::from_utf8(output.stderr).expect("it is text");
    assert_eq!(log.matches("event=not_notified").count(), 2, "at the start and the end: {log}");
    assert!(log.contains(&format!("NOTIFY_SOCKET is {}", socket.display())), "{log}");
}
