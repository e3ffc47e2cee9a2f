//! Against the real libibverbs, between the two soft-RoCE devices of the test machine: `make test-rdma`.

use crate::bed::{Bed, PATIENCE, copy, open, pattern, read, wait, write};
use crate::owner::Owner;
use crate::rules;
use roost_rdma::verbs::{Event, Failure, Path};
use roost_rdma::{Direction, Run};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What a silent peer may take: retries of half a second, four times as long if the device likes, and a slow machine.
const RETRIES_END: Duration = Duration::from_secs(20);

fn bed() -> Bed {
    Bed {
        asker: open(None, &["rxe0"]),
        owner: open(None, &["rxe1"]),
    }
}

macro_rules! rules {
    ($($rule:ident)*) => { $(
        #[test]
        #[ignore = "needs soft-RoCE: make test-rdma"]
        fn $rule() {
            rules::$rule(&bed());
        }
    )* };
}

rules! {
    reads_and_writes_carry_every_byte_and_no_other
    a_batch_of_scattered_runs_is_one_operation
    a_wrong_key_writes_nothing_and_harms_no_other_path
    revoked_memory_is_out_of_reach
    what_does_not_fit_is_refused_before_anything_is_sent
    closing_tells_every_operation_and_lets_memory_go
    a_cancelled_operation_ends_and_the_path_goes_on
}

/// Runs a command that must succeed.
fn system(command: &str) {
    assert!(
        Command::new("sh")
            .args(["-c", command])
            .status()
            .unwrap()
            .success(),
        "{command}"
    );
}

/// Puts the cable in order again, whatever becomes of the test.
struct Cable;

impl Drop for Cable {
    fn drop(&mut self) {
        let mend = "ip link set veth0 up; ip link set veth1 up; for end in 0 1; do tc qdisc del dev veth$end root 2>/dev/null; \
                    ip route replace 10.77.0.$((2 - end)) dev veth$end src 10.77.0.$((1 + end)) table $((100 + end)); done";
        let _ = Command::new("sh").args(["-c", mend]).status();
    }
}

#[test]
#[ignore = "needs soft-RoCE: make test-rdma"]
fn one_lost_packet_of_a_hundred_is_ridden_out() {
    let _cable = Cable;
    let bed = bed();
    let mut owned = pattern(1, 4 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    system("tc qdisc add dev veth0 root netem loss 1%; tc qdisc add dev veth1 root netem loss 1%");
    let began = Instant::now();
    let mut target = vec![0; 4 << 20];
    read(&mut path, &mut target, 0, &published).unwrap();
    assert!(target == pattern(1, 4 << 20));
    let mut source = pattern(2, 4 << 20);
    write(&mut path, &mut source, 0, &published).unwrap();
    println!("8 MiB with 1 % of loss: {:?}", began.elapsed());
    drop(published);
    assert!(owned == source);
}

#[test]
#[ignore = "needs soft-RoCE: make test-rdma"]
fn a_cut_cable_is_an_error_in_time_and_a_mended_one_works() {
    let cable = Cable;
    let bed = bed();
    let mut owned = pattern(1, 1 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, serving) = bed.path();
    system("ip link set veth0 down");
    let mut target = vec![0; 1 << 20];
    let began = Instant::now();
    let failure = read(&mut path, &mut target, 0, &published).unwrap_err();
    println!("cut: {failure:?} after {:?}", began.elapsed());
    assert!(matches!(failure, Failure::Unreachable(_)) && began.elapsed() < RETRIES_END);
    let refused = Path::ask(&bed.asker, &bed.owner.card())
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("ACTIVE"), "{refused}");
    drop((path, serving));
    drop(cable);
    let began = Instant::now();
    let (mut path, _serving) = loop {
        match Path::ask(&bed.asker, &bed.owner.card()) {
            Ok(_) => break bed.path(),
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    read(&mut path, &mut target, 0, &published).unwrap();
    assert!(target == pattern(1, 1 << 20));
}

/// A path to an owner in another process.
fn reach(bed: &Bed, owner: &mut Owner) -> Path {
    let (mut path, offer) = Path::ask(&bed.asker, &owner.card).unwrap();
    let answer = owner.answer(&offer);
    path.connect(&answer).unwrap();
    assert_eq!(wait(&mut path, PATIENCE, 1), [Event::Ready]);
    path
}

#[test]
#[ignore = "needs soft-RoCE: make test-rdma"]
fn an_owner_killed_in_mid_transfer_is_an_error_in_time_and_harms_no_other() {
    const BYTES: usize = 32 << 20;
    let bed = bed();
    let (mut dying, mut living) = (Owner::start("rxe1", BYTES), Owner::start("rxe1", BYTES));
    let (mut path, mut other) = (reach(&bed, &mut dying), reach(&bed, &mut living));
    let mut targets = [vec![0; BYTES], vec![0; BYTES]];
    for (at, path) in [&mut path, &mut other].into_iter().enumerate() {
        let run = Run {
            remote: 0,
            local: targets[at].as_mut_ptr().expose_provenance(),
            bytes: BYTES as u64,
        };
        let region = if at == 0 { &dying.region } else { &living.region };
        // SAFETY: the targets live until both events have come.
        unsafe { path.post(1, Direction::Read, &[run], region) }.unwrap();
    }
    dying.process.kill().unwrap();
    let began = Instant::now();
    let events = wait(&mut path, RETRIES_END, 1);
    println!("killed: {events:?} after {:?}", began.elapsed());
    assert!(
        matches!(
            &events[0],
            Event::Failed {
                id: 1,
                failure: Failure::Unreachable(_) | Failure::Access(_)
            }
        ),
        "{events:?}"
    );
    assert_eq!(wait(&mut other, PATIENCE, 1), [Event::Done { id: 1 }]);
    assert!(targets[1] == pattern(1, BYTES));
}

#[test]
#[ignore = "needs soft-RoCE: make test-rdma"]
fn a_path_that_nobody_serves_is_broken_in_time() {
    let bed = bed();
    let (mut path, offer) = Path::ask(&bed.asker, &bed.owner.card()).unwrap();
    let (serving, answer) = Path::serve(&bed.owner, &offer).unwrap();
    drop(serving);
    path.connect(&answer).unwrap();
    let began = Instant::now();
    let events = wait(&mut path, RETRIES_END, 1);
    println!("nobody: {events:?} after {:?}", began.elapsed());
    assert!(matches!(&events[0], Event::Broken { .. }), "{events:?}");
}

/// A process that does not outlive the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds for one message of `ibv_rc_pingpong`, which sends one at a time there and back.
fn pingpong(bytes: usize, rounds: usize) -> f64 {
    let command = |device: &str, extra: &str| {
        let text = format!("exec ibv_rc_pingpong -d {device} -g 1 -m 4096 -s {bytes} -n {rounds} {extra}");
        Command::new("sh")
            .args(["-c", &text])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut server = Running(command("rxe0", ""));
    let end = Instant::now() + PATIENCE;
    loop {
        let client = command("rxe1", "10.77.0.1").wait_with_output().unwrap();
        if client.status.success() {
            let said = String::from_utf8(client.stdout).unwrap();
            let seconds = said.lines().find_map(|line| {
                line.split_once(" iters in ")?
                    .1
                    .split(' ')
                    .next()?
                    .parse::<f64>()
                    .ok()
            });
            assert!(server.0.wait().unwrap().success());
            #[expect(clippy::cast_precision_loss, reason = "some hundreds of rounds")]
            return seconds.unwrap() / (2 * rounds) as f64;
        }
        // The server does not listen yet.
        assert!(
            Instant::now() < end,
            "{}",
            String::from_utf8_lossy(&client.stderr)
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "needs soft-RoCE: make test-rdma"]
#[expect(clippy::cast_precision_loss, reason = "figures for a reader")]
fn as_fast_as_a_ping_pong_of_the_same_messages() {
    let bed = bed();
    let mut owned = pattern(1, 1 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    let mut local = vec![0; 1 << 20];
    // SAFETY: the local memory lives longer than the hold.
    let _hold = unsafe {
        bed.asker.hold(
            Direction::Read,
            &[(local.as_mut_ptr().expose_provenance(), 1 << 20)],
        )
    }
    .unwrap();
    for bytes in [64 << 10, 256 << 10, 1 << 20] {
        let rounds = (8 << 20) / bytes;
        // The machine's speed changes with what else runs on the host: the best of some tries, each beside the floor's.
        let mut best: (f64, f64) = (0.0, 0.0);
        let mut floor = f64::MAX;
        for _ in 0..3 {
            floor = floor.min(pingpong(bytes, rounds));
            let mut time = |direction| {
                let began = Instant::now();
                (0..rounds)
                    .for_each(|_| copy(&mut path, direction, &mut local[..bytes], 0, &published).unwrap());
                began.elapsed().as_secs_f64() / rounds as f64
            };
            let (reading, writing) = (time(Direction::Read), time(Direction::Write));
            best = (best.0.max(floor / reading), best.1.max(floor / writing));
        }
        println!(
            "{bytes} bytes: ping-pong {:.1} MB/s, reads {:.2} of it, writes {:.2}",
            bytes as f64 / floor / 1e6,
            best.0,
            best.1
        );
        assert!(
            best.0 >= 0.7 && best.1 >= 0.7,
            "{bytes} bytes: {best:?} of a ping-pong's rate"
        );
    }
}
