//! The proxies that stand in front of the upstream, each a process of its own.

use super::{Failure, process::Process};
use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};
use tokio::process::Command;

/// What starts a proxy needs.
pub(crate) struct Yard {
    pub(crate) upstream: SocketAddr,
    /// For configurations and logs.
    pub(crate) folder: PathBuf,
    pub(crate) deferral: PathBuf,
    pub(crate) baseline: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// The least a proxy on hyper can do.
    Bare,
    Nginx,
    /// As people start it: one access line a call, to a descriptor nobody reads.
    Deferral,
    /// The same with its tasks in a folder.
    Disk,
    /// Another binary of it, started likewise.
    Baseline,
    /// With warnings only.
    Quiet,
    /// The least that stands in front of a process.
    BareLines,
    /// In front of a process.
    Lines,
}

// === impl Proxy ===

impl Proxy {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare hyper",
            Self::Nginx => "nginx",
            Self::Deferral => "deferral",
            Self::Disk => "deferral, disk",
            Self::Baseline => "baseline",
            Self::Quiet => "deferral, log off",
            Self::BareLines => "bare lines",
            Self::Lines => "deferral, process",
        }
    }

    pub(crate) async fn start(self, yard: &Yard) -> Result<Process, Failure> {
        self.start_under(yard, &[]).await
    }

    /// Starts it through another program that runs it, if one is named.
    pub(crate) async fn start_under(self, yard: &Yard, runner: &[String]) -> Result<Process, Failure> {
        let command = |program: &Path| match runner {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        match self {
            Self::Bare => {
                let address = yard.upstream.to_string();
                Process::start(command(&env::current_exe()?).args(["bare", &address])).await
            }
            Self::Nginx => {
                let program = nginx().ok_or("nginx is not installed")?;
                let address = free_address()?;
                let folder = yard.folder.join(format!("nginx-{}", address.port()));
                fs::create_dir_all(&folder)?;
                fs::write(folder.join("nginx.conf"), nginx_config(address, yard.upstream))?;
                let mut command = command(&program);
                command.arg("-p").arg(&folder).args(["-c", "nginx.conf", "-e", "stderr"]);
                Process::start_at(&mut command, address).await
            }
            Self::BareLines => Process::start(command(&env::current_exe()?).arg("relay")).await,
            Self::Deferral | Self::Disk | Self::Baseline | Self::Quiet | Self::Lines => {
                let program = match self {
                    Self::Baseline => yard.baseline.as_ref().ok_or("no baseline is named")?,
                    _ => &yard.deferral,
                };
                let config = yard.folder.join(format!("{}.yaml", self.name()));
                let upstream = match self {
                    Self::Lines => format!("command: [{:?}, lines]", env::current_exe()?),
                    _ => format!("url: \"http://{}/mcp\"", yard.upstream),
                };
                let store = match self {
                    Self::Disk => format!("{{ disk: {:?} }}", free_folder(&yard.folder)),
                    _ => "memory".to_owned(),
                };
                fs::write(&config, deferral_config(&upstream, &store))?;
                let mut command = command(program);
                command.arg("serve").arg("--config").arg(config).env_remove("DEFERRAL_LOG");
                if self == Self::Quiet {
                    command.env("DEFERRAL_LOG", "warn");
                }
                Process::start(&mut command).await
            }
        }
    }
}

/// Where nginx is, if it is installed.
pub(crate) fn nginx() -> Option<PathBuf> {
    find("nginx")
}

/// Where a program is, if it is on the path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    // Where it is installed without being on everybody's path.
    let folders = env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// A port that was free a moment ago, for a server that cannot be asked for the one it got.
fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Where nothing is yet.
fn free_folder(above: &Path) -> PathBuf {
    let names = (0..).map(|number| above.join(format!("tasks-{number}")));
    names.into_iter().find(|folder| !folder.exists()).expect("numbers do not end")
}

/// The defaults but for what would end connections, and for the access log, which costs a write.
fn nginx_config(listen: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "daemon off; master_process off; worker_processes 1; pid nginx.pid; error_log stderr crit;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  keepalive_requests 1000000000;
  upstream server {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}
  server {{
    listen {listen};
    location / {{
      proxy_pass http://server;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_read_timeout 1h;
    }}
  }}
}}
"
    )
}

/// The defaults but for a limit that all of this bench's clients together, who are one principal,
/// would reach.
fn deferral_config(upstream: &str, store: &str) -> String {
    format!(
        "listen: 127.0.0.1:0
admin: off
store: {store}
limits: {{ polls_per_second: 1000000 }}
routes:
  - upstream: {{ {upstream} }}
    tools:
      - {{ match: slow, mode: always }}
"
    )
}
