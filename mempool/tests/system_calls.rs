//! What memory for messages costs in system calls: from the pool, and registered for each of them. Counts are the same on a busy machine, so this is
//! also how the two are compared on the kernel's Soft-RoCE, which is emulated and has no times worth comparing.
//!
//! The device is `soft0`, or the one that `VERBATIM_DEVICE` names. The test runs itself once more, and follows that process with ptrace(2).
#![cfg(not(loom))]

use mempool::{Buf, Pool, SgList, sg};
use std::collections::BTreeMap;
use std::process::Command;
use verbs::{Completion, Cq, Device, Mmap, Pd, RecvQueue, SendQueue};

const NAME: &str = "a_message_from_the_pool_needs_no_system_call_for_its_memory";
const CHILD: &str = "VERBATIM_CALLS_CHILD";
/// No descriptor: closing so many more is no call that anything else makes.
const MARK: i64 = -1_000_000;
const PAIRS: u64 = 10_000;
const TIMES: u64 = 20;
/// Minutes.
const POLLS: u64 = 2_000_000_000;

const FUTEX: u64 = libc::SYS_futex as u64;

/// System calls by number.
type Calls = BTreeMap<u64, u64>;

#[test]
fn a_message_from_the_pool_needs_no_system_call_for_its_memory() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let Some(parts) = follow() else { return };
    let [pairs, shared, registered, from_pool, each_registered] = &parts[..] else {
        panic!("{} parts: did the other process fail?", parts.len())
    };
    let all = |calls: &Calls| calls.values().sum::<u64>();
    let of = |calls: &Calls| {
        let named = |(nr, count): (&u64, &u64)| format!("{} {count}", name(*nr));
        calls.iter().map(named).collect::<Vec<_>>().join(", ")
    };
    println!("system calls on {}:", device_name());
    println!(
        "  {PAIRS} times alloc and free: {} ({})",
        all(pairs),
        of(pairs)
    );
    println!(
        "  {PAIRS} times, sliced and shared: {} ({})",
        all(shared),
        of(shared)
    );
    println!(
        "  {TIMES} times register and deregister: {} ({})",
        all(registered),
        of(registered)
    );
    println!(
        "  {TIMES} messages from the pool: {} ({})",
        all(from_pool),
        of(from_pool)
    );
    println!(
        "  {TIMES} messages, each registered: {} ({})",
        all(each_registered),
        of(each_registered)
    );
    assert_eq!((all(pairs), all(shared)), (0, 0));
    // One to register and one to deregister, at least.
    assert!(all(registered) >= 2 * TIMES, "{registered:?}");
    // Who polls and the thread that works in the device's asynchronous mode wait for each other, as often as it happens: that is no call for memory.
    let for_memory = |calls: &Calls| all(calls) - calls.get(&FUTEX).copied().unwrap_or(0);
    assert!(for_memory(each_registered) >= for_memory(from_pool) + 2 * TIMES);
    if device_name().starts_with("rxe") {
        let ioctls = |calls: &Calls| calls.get(&(libc::SYS_ioctl as u64)).copied();
        assert_eq!(
            ioctls(registered),
            Some(2 * TIMES),
            "by the kernel's interface"
        );
        assert_eq!(ioctls(from_pool), None);
    }
}

fn device_name() -> String {
    let named = std::env::var(Device::ENV).ok().filter(|v| !v.is_empty());
    named.unwrap_or_else(|| "soft0".to_owned())
}

/// Those that are to be expected.
fn name(nr: u64) -> String {
    let known = [
        (libc::SYS_ioctl, "ioctl"),
        (libc::SYS_write, "write"),
        (libc::SYS_read, "read"),
        (libc::SYS_mincore, "mincore"),
        (libc::SYS_madvise, "madvise"),
        (libc::SYS_mmap, "mmap"),
        (libc::SYS_munmap, "munmap"),
        (libc::SYS_membarrier, "membarrier"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_close, "close"),
        (libc::SYS_futex, "futex"),
    ];
    let known = known.iter().find(|(number, _)| *number as u64 == nr);
    known.map_or_else(|| format!("number {nr}"), |(_, name)| (*name).to_owned())
}

/// A part begins, or the last has ended.
fn mark(part: i64) {
    // SAFETY: closes nothing.
    unsafe { libc::syscall(libc::SYS_close, MARK - part) };
}

/// What is followed.
fn child() {
    let pd = Device::open_spec(&device_name())
        .unwrap()
        .alloc_pd()
        .unwrap();
    // As it is used; in debug mode each free is a look around.
    let pool = Pool::builder(&pd).debug(None).build().unwrap();
    let mut queue = Loop::new(&pd, &pool);
    const LENS: [usize; 4] = [64, 4096, 60_000, 1 << 20];
    // What is used for the first time is not what this is about.
    for len in LENS {
        drop(pool.alloc(len).unwrap());
    }
    queue.send(sg![pool.alloc(4096).unwrap()]);
    let mut memory = Mmap::anonymous(4096).unwrap();
    memory = pd.register(memory).unwrap().into_inner().unwrap();
    // SAFETY: this process is to be followed by its parent; raising a signal touches no memory.
    let followed = unsafe {
        let followed = libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
        if followed == 0 {
            libc::raise(libc::SIGSTOP);
        }
        followed
    };
    assert_eq!(followed, 0, "ptrace: {}", std::io::Error::last_os_error());

    mark(0);
    for n in 0..PAIRS as usize {
        std::hint::black_box(pool.alloc(LENS[n % LENS.len()]).unwrap());
    }
    mark(1);
    for n in 0..PAIRS as usize {
        let (head, tail) = pool.alloc(LENS[n % LENS.len()]).unwrap().split_at(16);
        let tail = tail.freeze();
        std::hint::black_box((tail.clone(), head));
    }
    mark(2);
    for _ in 0..TIMES {
        memory = pd.register(memory).unwrap().into_inner().unwrap();
    }
    mark(3);
    for _ in 0..TIMES {
        queue.send(sg![pool.alloc(4096).unwrap()]);
    }
    mark(4);
    for _ in 0..TIMES {
        let region = pd.register(memory).unwrap();
        memory = queue.send_foreign(region).into_inner().unwrap();
    }
    mark(5);
}

/// A queue pair that is connected to itself: by lists, and by memory that is registered for a message.
struct Loop {
    pool: Pool,
    cq: Cq,
    tx: SendQueue<SgList>,
    rx: RecvQueue<Buf>,
    own: (SendQueue<verbs::Private<Mmap>>, RecvQueue<Buf>),
}

impl Loop {
    fn new(pd: &Pd, pool: &Pool) -> Loop {
        let cq = pd.context().cq(256).build().unwrap();
        let ready = || pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
        let (one, two) = (ready(), ready());
        let ends = (one.endpoint(), two.endpoint());
        let (tx, rx) = one.connect(&ends.0).unwrap();
        let own = two.connect(&ends.1).unwrap();
        let pool = pool.clone();
        Loop {
            pool,
            cq,
            tx,
            rx,
            own,
        }
    }

    fn next(cq: &mut Cq) -> Completion {
        // Without looking at a clock, which can be a system call.
        for _ in 0..POLLS {
            if let Some(completion) = cq.poll().unwrap() {
                return completion;
            }
            std::hint::spin_loop();
        }
        panic!("no completion after {POLLS} polls")
    }

    fn send(&mut self, list: SgList) {
        self.rx.post(self.pool.alloc(4096).unwrap()).unwrap();
        self.tx.send(list).signaled().post().unwrap();
        for _ in 0..2 {
            let completion = Loop::next(&mut self.cq);
            if completion.queue() == self.rx.id() {
                drop(self.rx.redeem(completion).unwrap().unwrap());
            } else {
                let mut done = self.tx.retire(completion).unwrap();
                self.tx.take(&mut done).unwrap().1.unwrap();
            }
        }
    }

    fn send_foreign(&mut self, region: verbs::Private<Mmap>) -> verbs::Private<Mmap> {
        let (tx, rx) = &mut self.own;
        rx.post(self.pool.alloc(4096).unwrap()).unwrap();
        tx.send(region).signaled().post().unwrap();
        let mut back = None;
        for _ in 0..2 {
            let completion = Loop::next(&mut self.cq);
            if completion.queue() == rx.id() {
                drop(rx.redeem(completion).unwrap().unwrap());
            } else {
                let mut done = tx.retire(completion).unwrap();
                let (region, result) = tx.take(&mut done).unwrap();
                result.unwrap();
                back = Some(region);
            }
        }
        back.expect("one of the two is the send's")
    }
}

/// Runs the test once more and counts the system calls of each part. `None`, and said, where processes cannot be followed.
fn follow() -> Option<Vec<Calls>> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([NAME, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1");
    #[allow(clippy::zombie_processes, reason = "waited for by waitpid")]
    let mut child = command.spawn().unwrap();
    let mut parts: Vec<Calls> = Vec::new();
    // Whether a part is being counted.
    let mut counting = false;
    // SAFETY: the calls touch the status and the information that are given, and the process that is followed, which is a child of this
    // thread's.
    unsafe {
        let mut status = 0;
        // Its thread that runs the test, once it is followed; or the process, if it failed before.
        let thread = libc::waitpid(-1, &mut status, libc::__WALL);
        if !libc::WIFSTOPPED(status) {
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            eprintln!("SKIPPED: the other process could not be followed, see above");
            return None;
        }
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        assert_eq!(libc::ptrace(libc::PTRACE_SETOPTIONS, thread, 0, options), 0);
        loop {
            assert_eq!(libc::ptrace(libc::PTRACE_SYSCALL, thread, 0, 0), 0);
            assert_eq!(libc::waitpid(thread, &mut status, libc::__WALL), thread);
            assert!(libc::WIFSTOPPED(status), "it has ended with {status:#x}");
            if libc::WSTOPSIG(status) != libc::SIGTRAP | 0x80 {
                continue;
            }
            let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
            let size = size_of_val(&info);
            let got = libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, &raw mut info);
            assert!(got > 0, "{}", std::io::Error::last_os_error());
            if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
                continue;
            }
            let call = info.u.entry;
            let part = MARK - call.args[0] as i64;
            if call.nr == libc::SYS_close as u64 && (0..=5).contains(&part) {
                if part == 5 {
                    break;
                }
                parts.push(Calls::new());
                counting = true;
            } else if let (true, Some(calls)) = (counting, parts.last_mut()) {
                *calls.entry(call.nr).or_default() += 1;
            }
        }
        assert_eq!(libc::ptrace(libc::PTRACE_DETACH, thread, 0, 0), 0);
    }
    assert!(child.wait().unwrap().success());
    Some(parts)
}
