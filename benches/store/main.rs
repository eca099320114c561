//! The store on disk: what it takes of memory, time and the disk, beside the one in memory.
//!
//! `cargo bench --bench store` runs all of it in a few minutes; `-- --quick` with a tenth of the tasks. What is
//! measured runs in a process of its own, which is this program with other words.

use bytes::Bytes;
use deferral::internals::{
    protocol::Timestamp,
    runtime::{Clock, SystemClock},
    store::{DiskStore, MemoryStore, Store, StoreBounds, UpdateOutcome, update},
    task::{Record, TaskEvent, TaskId, TaskPrincipal, TaskSharing},
};
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use tokio::{sync::Semaphore, task::JoinSet};

/// The program's own, as it is shipped.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const START: Timestamp = Timestamp::from_millis(1_785_234_600_000);
/// Tasks that are at work at a time, where there are many.
const AT_ONCE: usize = 1000;
/// How often that is measured; the middle one is shown.
const ROUNDS: u32 = 5;
/// Bytes of a result.
const RESULT: usize = 1000;

#[tokio::main]
async fn main() {
    let words: Vec<_> = env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["fill", path, tasks] => fill(path, number(tasks)).await,
        ["open", path, tasks] => open(path, number(tasks)).await,
        ["work", path, tasks, at_once] => work(path, number(tasks), number(at_once)).await,
        ["least", path, tasks] => least(path, number(tasks)).await,
        ["large", path] => large(path).await,
        _ if !words.iter().any(|word| word == "--bench") => {}
        _ => all(words.iter().any(|word| word == "--quick")),
    }
}

fn number(word: &str) -> u32 {
    word.parse().expect("a number")
}

// === what is measured ===

fn all(quick: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let many = if quick { 100_000 } else { 1_000_000 };
    println!("ended tasks of {RESULT} bytes, after kill -9");
    println!(
        "  {:>9} {:>10} {:>10} {:>14} {:>10} {:>12}",
        "tasks", "ready ms", "open MiB", "1000 read MiB", "file MiB", "tasks/s"
    );
    for tasks in [10_000, many] {
        let path = folder.path().join(format!("store-{tasks}"));
        let rate = filled_and_killed(&path, tasks);
        let file = fs::metadata(path.join("tasks.db")).expect("it is there").len() >> 20;
        let opened = run(&["open", &shown(&path), &tasks.to_string()]);
        let (ready, then, later) =
            (opened["ready_ms"], opened["open_kib"] / 1024.0, opened["read_kib"] / 1024.0);
        println!("  {tasks:>9} {ready:>10.1} {then:>10.1} {later:>14.1} {file:>10} {rate:>12.0}");
    }
    println!("\na task: insert, a question, its answer, the end");
    println!("  {:<22} {:>12} {:>14} {:>12}", "", "CPU us", "time us", "flushes");
    for at_once in [1, AT_ONCE] {
        tasks_cost(folder.path(), at_once, if quick { 1_000 } else { 5_000 });
    }
    println!("\nan insert, in ms");
    let did = run(&["large", &shown(&folder.path().join("large"))]);
    println!("  {:<30} {:>8} {:>8}", "", "p50", "p99");
    for beside in ["alone", "beside 10 MiB"] {
        println!(
            "  {beside:<30} {:>8.2} {:>8.2}",
            did[&format!("{beside} p50")],
            did[&format!("{beside} p99")]
        );
    }
}

/// What a task costs in each store, in turns, and what the disk and the hand-over to it cost at least.
fn tasks_cost(folder: &Path, at_once: usize, tasks: u32) {
    let (tasks, many) = (tasks.to_string(), at_once.to_string());
    let mut figures = BTreeMap::<_, Vec<_>>::new();
    for round in 0..ROUNDS {
        let path = |store| shown(&folder.join(format!("{store}-{at_once}-{round}")));
        let mut did = vec![
            ("memory", run(&["work", "memory", &tasks, &many])),
            ("disk", run(&["work", &path("disk"), &tasks, &many])),
        ];
        if at_once == 1 {
            did.push(("the least", run(&["least", &path("least"), &tasks])));
        }
        for (store, did) in did {
            figures.entry(store).or_default().push((did["cpu_us"], did["us"]));
        }
    }
    for (store, rounds) in figures {
        let middle = |figure: fn(&(f64, f64)) -> f64| {
            let mut all: Vec<_> = rounds.iter().map(figure).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let flushes = match store {
            "disk" => {
                flushes(folder, at_once).map_or_else(|| "no strace".to_owned(), |count| format!("{count:.3}"))
            }
            "memory" => "0".to_owned(),
            _ => "2".to_owned(),
        };
        let name = format!("{store}, {at_once} at once");
        println!("  {name:<22} {:>12.1} {:>14.1} {flushes:>12}", middle(|did| did.0), middle(|did| did.1));
    }
}

/// Fills a store in a process that is killed then. Gives the tasks it made in a second.
fn filled_and_killed(path: &Path, tasks: u32) -> f64 {
    let mut child = this(&["fill", &shown(path), &tasks.to_string()]);
    let mut child = child.stdout(Stdio::piped()).spawn().expect("starts");
    let mut said = String::new();
    BufReader::new(child.stdout.take().expect("piped"))
        .read_line(&mut said)
        .expect("it says when it is done");
    child.kill().expect("it is ours");
    child.wait().expect("it ends");
    said.trim().parse().expect("a rate")
}

/// Flushes of a task, as the system saw them. Those that make a folder and open it are not among them: that is done
/// once, however many tasks there are.
fn flushes(folder: &Path, at_once: usize) -> Option<f64> {
    // Enough that the log is carried over a few times.
    let tasks = at_once.max(1000) * 2;
    let [opening, all] = [0, tasks].map(|tasks| flushes_of(folder, tasks, at_once));
    Some((all? - opening?) / tasks as f64)
}

/// Flushes of a process that makes a store for so many tasks.
fn flushes_of(folder: &Path, tasks: usize, at_once: usize) -> Option<f64> {
    let told = folder.join("strace");
    let store = folder.join(format!("strace-{at_once}-{tasks}"));
    let output = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=fsync,fdatasync", "-o"])
        .arg(&told)
        .arg(env::current_exe().expect("it has a path"))
        .args(["work", &shown(&store), &tasks.to_string(), &at_once.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    output.ok().filter(|status| status.success())?;
    Some(fs::read_to_string(told).ok()?.lines().filter(|line| line.contains("sync(")).count() as f64)
}

fn this(words: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().expect("it has a path"));
    command.args(words).stdin(Stdio::null());
    command
}

/// Figures by their names.
fn run(words: &[&str]) -> BTreeMap<String, f64> {
    let output = this(words).output().expect("starts");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("text");
    let figure = |line: &str| {
        let (name, figure) = line.rsplit_once(' ').expect("a name and a figure");
        (name.to_owned(), figure.parse().expect("a figure"))
    };
    said.lines().map(figure).collect()
}

fn shown(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}

// === in processes of their own ===

async fn fill(path: &str, tasks: u32) {
    let store: Arc<dyn Store> =
        Arc::new(DiskStore::open(Path::new(path), StoreBounds::NONE, None).expect("opens"));
    let (began, filled) = (now(), Arc::clone(&store));
    each(tasks, AT_ONCE, move |number| {
        let store = Arc::clone(&filled);
        async move {
            store.insert(record(number)).await.expect("inserted");
            change(&*store, number, TaskEvent::Returned { result: body(RESULT) }).await;
        }
    })
    .await;
    println!("{}", f64::from(tasks) / began.elapsed().as_secs_f64());
    // Until it is killed, in the middle of its use.
    std::future::pending::<()>().await;
    drop(store);
}

async fn open(path: &str, tasks: u32) {
    let began = now();
    let store = DiskStore::open(Path::new(path), StoreBounds::NONE, None).expect("opens");
    let first = store.load(&id(tasks / 2)).await.expect("answers");
    println!("ready_ms {}", began.elapsed().as_secs_f64() * 1e3);
    assert!(first.is_some());
    assert_eq!(store.usage(&[1; 16]).tasks, tasks as usize);
    println!("open_kib {}", resident());
    for at in 0..1000 {
        let found = store.load(&id(tasks / 1000 * at)).await.expect("answers");
        assert!(found.is_some());
    }
    println!("read_kib {}", resident());
}

async fn work(path: &str, tasks: u32, at_once: u32) {
    let store: Arc<dyn Store> = match path {
        "memory" => Arc::new(MemoryStore::default()),
        path => Arc::new(DiskStore::open(Path::new(path), StoreBounds::NONE, None).expect("opens")),
    };
    let (began, cpu) = (now(), cpu());
    each(tasks, at_once as usize, move |number| {
        let store = Arc::clone(&store);
        async move {
            store.insert(record(number)).await.expect("inserted");
            let request = r#"{"method":"roots/list"}"#.into();
            change(&*store, number, TaskEvent::InputRequested { key: "k".into(), request }).await;
            let answers = BTreeMap::from([("k".to_owned(), Ok(Bytes::from_static(b"{}")))]);
            change(&*store, number, TaskEvent::InputAnswered { answers, are_stored: true }).await;
            change(&*store, number, TaskEvent::Returned { result: body(RESULT) }).await;
        }
    })
    .await;
    println!("us {}", began.elapsed().as_secs_f64() * 1e6 / f64::from(tasks));
    println!("cpu_us {}", (self::cpu() - cpu).as_secs_f64() * 1e6 / f64::from(tasks));
}

/// What nobody who writes on another thread is spared: four changes are handed over, written, and answered one
/// after the other; two of them are flushed. Nothing else is done.
async fn least(path: &str, tasks: u32) {
    /// The change's place, and who waits for it.
    type Handed = (u64, tokio::sync::oneshot::Sender<()>);
    /// Pages of the file that are written again and again.
    const PAGES: u64 = 1000;
    /// Pages that a task writes.
    const EACH: u64 = 10;
    let file = fs::File::create(path).expect("made");
    let page = [7; 4096];
    (0..PAGES).for_each(|at| file.write_all_at(&page, at * 4096).expect("written"));
    file.sync_all().expect("flushed");
    let (hand, handed) = mpsc::channel::<Handed>();
    let writer = thread::spawn(move || {
        for (change, answer) in handed {
            // The first and the last have four pages, and are flushed.
            let (first, pages, flush) = [(0, 4, true), (4, 1, false), (5, 1, false), (6, 4, true)]
                [usize::try_from(change % 4).expect("small")];
            for at in first..first + pages {
                file.write_all_at(&page, (change / 4 * EACH + at) % PAGES * 4096).expect("written");
            }
            if flush {
                file.sync_data().expect("flushed");
            }
            let _ = answer.send(());
        }
    });
    let (began, cpu) = (now(), cpu());
    for change in 0..u64::from(tasks) * 4 {
        let (answer, answered) = tokio::sync::oneshot::channel();
        hand.send((change, answer)).expect("it listens");
        answered.await.expect("answered");
    }
    println!("us {}", began.elapsed().as_secs_f64() * 1e6 / f64::from(tasks));
    println!("cpu_us {}", (self::cpu() - cpu).as_secs_f64() * 1e6 / f64::from(tasks));
    drop(hand);
    writer.join().expect("ends");
}

/// How long an insert takes, alone and while results of 10 MiB are written one after the other.
async fn large(path: &str) {
    let store: Arc<dyn Store> =
        Arc::new(DiskStore::open(Path::new(path), StoreBounds::NONE, None).expect("opens"));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut inserted = 1_000_000;
    for beside in ["alone", "beside 10 MiB"] {
        let writer = (beside != "alone").then(|| {
            let (store, is_over) = (Arc::clone(&store), Arc::clone(&is_over));
            tokio::spawn(async move {
                let body = body(10 << 20);
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    store.insert(record(number)).await.expect("inserted");
                    change(&*store, number, TaskEvent::Returned { result: body.clone() }).await;
                    store.remove(&id(number)).await.expect("removed");
                }
            })
        });
        let mut took = Vec::new();
        for _ in 0..2000 {
            let began = now();
            store.insert(record(inserted)).await.expect("inserted");
            took.push(began.elapsed());
            inserted += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        is_over.store(true, Ordering::Relaxed);
        if let Some(writer) = writer {
            writer.await.expect("ends");
        }
        took.sort_unstable();
        let at = |share: f64| took[(took.len() as f64 * share) as usize].as_secs_f64() * 1e3;
        println!("{beside} p50 {}\n{beside} p99 {}", at(0.5), at(0.99));
    }
}

/// Does something for each number, so many at a time.
async fn each<F: Future<Output = ()> + Send + 'static>(tasks: u32, at_once: usize, work: impl Fn(u32) -> F) {
    if at_once == 1 {
        for number in 0..tasks {
            work(number).await;
        }
        return;
    }
    let places = Arc::new(Semaphore::new(at_once));
    let mut all = JoinSet::new();
    for number in 0..tasks {
        let place = Arc::clone(&places).acquire_owned().await.expect("it stays open");
        let work = work(number);
        all.spawn(async move {
            work.await;
            drop(place);
        });
        while let Some(done) = all.try_join_next() {
            done.expect("ends");
        }
    }
    while let Some(done) = all.join_next().await {
        done.expect("ends");
    }
}

async fn change(store: &dyn Store, number: u32, event: TaskEvent) {
    let told = update(store, &id(number), &event, START).await;
    assert!(matches!(told, Ok(UpdateOutcome::Applied { .. })), "{told:?}");
}

fn id(number: u32) -> TaskId {
    // Spread, as real ones are.
    let entropy = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    TaskId::from_entropy(entropy.to_be_bytes())
}

fn record(number: u32) -> Arc<Record> {
    let mut principal = [1; 16];
    // A thousand callers.
    principal[..2].copy_from_slice(&u16::try_from(number % 1000).expect("small").to_be_bytes());
    let owner = TaskPrincipal { principal, route: "/mcp".into(), scope: TaskSharing::Principal };
    let created = START + Duration::from_millis(u64::from(number));
    Arc::new(Record::new(id(number), owner, "export_report", Duration::from_secs(3600), created))
}

fn body(bytes: usize) -> Bytes {
    format!(r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(bytes.saturating_sub(43))).into()
}

fn now() -> Instant {
    SystemClock::new().now()
}

/// CPU time of all threads of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
}

/// KiB of this process in memory.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux says it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
