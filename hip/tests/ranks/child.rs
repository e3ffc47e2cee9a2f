//! What a rank does.

use std::io::BufRead;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use roost_hip::library::Search;
use roost_hip::rccl::{
    Collectives, Communicator, DataType, Operation, Options, Progress, ReduceOp, UniqueId, abort_all,
};
use roost_hip::{GpuError, Platform};

const LONG: Duration = Duration::from_mins(1);

struct Rank {
    collectives: Collectives,
    number: u32,
    ranks: u32,
    lines: Receiver<String>,
}

pub(crate) fn main() {
    let told = std::env::var("ROOST_TEST_RANK").unwrap();
    let words: Vec<_> = told.split(' ').collect();
    let folder = std::env::var("ROOST_TEST_FOLDER").unwrap().into();
    let collectives = Collectives::open(
        Platform::Cuda,
        &Search {
            folders: vec![folder],
        },
    )
    .unwrap();
    let (send, lines) = sync_channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
        // The parent is gone, or done with this rank.
        std::process::exit(0);
    });
    let rank = Rank {
        collectives,
        number: words[0].parse().unwrap(),
        ranks: words[1].parse().unwrap(),
        lines,
    };
    let id = parse(words[2]);
    match std::env::var("ROOST_TEST_DOES").unwrap().as_str() {
        "all" => rank.all(&id, false),
        "all blocking" => rank.all(&id, true),
        "few" => rank.few(&id),
        "death" => rank.death(id),
        "split" => rank.split(&id),
        "error" => rank.error(&id),
        "late" => rank.late(&id),
        other => panic!("{other}"),
    }
    // Whatever is left in flight ends with the process.
    rank.lines.recv().ok();
}

fn parse(hex: &str) -> UniqueId {
    let mut id = UniqueId([0; 128]);
    for (byte, digits) in id.0.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    }
    id
}

fn on<T>(from: &[T], to: &mut [T], count: usize, data_type: DataType) -> Operation {
    let stream = std::ptr::null_mut();
    Operation {
        from: from.as_ptr().cast(),
        to: to.as_mut_ptr().cast(),
        count,
        data_type,
        stream,
    }
}

/// Elements of a type, from small whole numbers that every type holds exactly.
trait Element: Copy + PartialEq + std::fmt::Debug {
    const TYPE: DataType;
    fn of(number: u32) -> Self;
}
macro_rules! elements {
    ($($kind:ty, $type:ident, |$number:ident| $of:expr;)*) => {
        $(impl Element for $kind { const TYPE: DataType = DataType::$type; fn of($number: u32) -> Self { $of } })*
    };
}
#[derive(Clone, Copy, PartialEq, Debug)]
struct Bf16(u16);
#[derive(Clone, Copy, PartialEq, Debug)]
struct F16(u16);
elements! {
    i8, I8, |n| i8::try_from(n).unwrap();
    u8, U8, |n| u8::try_from(n).unwrap();
    i32, I32, |n| n.cast_signed();
    u32, U32, |n| n;
    i64, I64, |n| n.into();
    u64, U64, |n| n.into();
    f32, F32, |n| f32::from(u16::try_from(n).unwrap());
    f64, F64, |n| n.into();
    Bf16, Bf16, |n| Self((f32::of(n).to_bits() >> 16) as u16);
    F16, F16, |n| Self(if n == 0 { 0 } else { let e = n.ilog2(); (((e + 15) << 10) | ((n << (10 - e)) & 0x3ff)) as u16 });
}

impl Rank {
    fn join(&self, id: &UniqueId, blocking: bool) -> Communicator {
        let options = Options {
            blocking,
            name: Some("test".to_owned()),
        };
        let communicator = self
            .collectives
            .join(id, self.ranks, self.number, &options)
            .unwrap();
        communicator.settle(LONG).unwrap();
        assert_eq!(communicator.size_and_rank().unwrap(), (self.ranks, self.number));
        communicator
    }

    fn all(&self, id: &UniqueId, blocking: bool) {
        let communicator = self.join(id, blocking);
        let mut compared = 0;
        for count in [0, 1, 3, 1000, 65_537] {
            compared +=
                self.of_type::<i8>(&communicator, count.min(1000)) + self.of_type::<u8>(&communicator, count);
            compared += self.of_type::<i32>(&communicator, count) + self.of_type::<u32>(&communicator, count);
            compared += self.of_type::<i64>(&communicator, count) + self.of_type::<u64>(&communicator, count);
            compared += self.of_type::<f32>(&communicator, count) + self.of_type::<f64>(&communicator, count);
            compared +=
                self.of_type::<Bf16>(&communicator, count) + self.of_type::<F16>(&communicator, count);
        }
        // Eight-bit floats go as bytes and cannot be summed.
        let (from, mut to) = (vec![self.number as u8; 5], vec![9_u8; 5 * self.ranks as usize]);
        // SAFETY: both live until the call is settled.
        let begun = unsafe { communicator.all_gather(on(&from, &mut to, 5, DataType::Fp8)) };
        communicator.settled(begun);
        assert_eq!(
            to,
            (0..self.ranks as u8)
                .flat_map(|rank| [rank; 5])
                .collect::<Vec<_>>()
        );
        // SAFETY: as above; it is refused.
        let refused = unsafe { communicator.all_reduce(on(&from, &mut to, 5, DataType::Fp8), ReduceOp::Sum) };
        assert!(matches!(refused, Err(GpuError::Refused { .. })));
        communicator.clone().close(LONG).unwrap();
        assert!(
            matches!(communicator.progress(), Err(GpuError::Aborted { .. })),
            "nothing goes through a closed door"
        );
        println!("roost ok {compared}");
    }

    /// Every collective once, in numbers that no type rounds. Returns how many results were compared.
    fn of_type<T: Element>(&self, communicator: &Communicator, count: usize) -> usize {
        let (ranks, me) = (self.ranks as usize, self.number as usize);
        let value = |rank: usize, i: usize| T::of(((rank + i) % 5) as u32);
        let mine: Vec<T> = (0..count).map(|i| value(me, i)).collect();
        let zero = T::of(0);
        let sum = |i: usize| T::of((0..ranks).map(|rank| ((rank + i) % 5) as u32).sum());
        let most = |i: usize| T::of((0..ranks).map(|rank| ((rank + i) % 5) as u32).max().unwrap());
        let mut to = vec![zero; count];
        // SAFETY: here and below, both sides live until the call is settled.
        let begun = unsafe { communicator.all_reduce(on(&mine, &mut to, count, T::TYPE), ReduceOp::Sum) };
        communicator.settled(begun);
        assert_eq!(to, (0..count).map(sum).collect::<Vec<_>>());
        let mut in_place = mine.clone();
        let both = Operation {
            from: in_place.as_ptr().cast(),
            ..on(&mine, &mut in_place, count, T::TYPE)
        };
        // SAFETY: as above, in place.
        let begun = unsafe { communicator.all_reduce(both, ReduceOp::Max) };
        communicator.settled(begun);
        assert_eq!(in_place, (0..count).map(most).collect::<Vec<_>>());
        let mut to = vec![zero; count];
        // SAFETY: as above.
        let begun = unsafe { communicator.reduce(on(&mine, &mut to, count, T::TYPE), ReduceOp::Sum, 1) };
        communicator.settled(begun);
        assert!(me != 1 || to == (0..count).map(sum).collect::<Vec<_>>());
        let whole: Vec<T> = (0..count * ranks).map(|i| value(me, i)).collect();
        let parts = on(&whole, &mut to, count, T::TYPE);
        // SAFETY: as above.
        let begun = unsafe { communicator.reduce_scatter(parts, ReduceOp::Sum) };
        communicator.settled(begun);
        assert_eq!(to, (0..count).map(|i| sum(me * count + i)).collect::<Vec<_>>());
        let mut all = vec![zero; count * ranks];
        // SAFETY: as above.
        let begun = unsafe { communicator.all_gather(on(&mine, &mut all, count, T::TYPE)) };
        communicator.settled(begun);
        assert_eq!(
            all,
            (0..ranks)
                .flat_map(|rank| (0..count).map(move |i| value(rank, i)))
                .collect::<Vec<_>>()
        );
        // SAFETY: as above.
        let begun = unsafe { communicator.broadcast(on(&mine, &mut to, count, T::TYPE), self.ranks - 1) };
        communicator.settled(begun);
        assert_eq!(to, (0..count).map(|i| value(ranks - 1, i)).collect::<Vec<_>>());
        let whole: Vec<T> = (0..ranks)
            .flat_map(|peer| (0..count).map(move |i| value(me + 2 * peer, i)))
            .collect();
        // SAFETY: as above.
        let begun = unsafe { communicator.all_to_all(on(&whole, &mut all, count, T::TYPE)) };
        communicator.settled(begun);
        assert_eq!(
            all,
            (0..ranks)
                .flat_map(|rank| (0..count).map(move |i| value(rank + 2 * me, i)))
                .collect::<Vec<_>>()
        );
        // Round the ring: each sends to the next and receives from the one before, in one group.
        let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let ring = on(&mine, &mut to, count, T::TYPE);
        let begun = communicator.group(|| {
            // SAFETY: as above.
            unsafe { communicator.send(ring, next as u32) }?;
            // SAFETY: as above.
            unsafe { communicator.receive(ring, before as u32) }.map(drop)
        });
        communicator.settled(begun);
        assert_eq!(to, (0..count).map(|i| value(before, i)).collect::<Vec<_>>());
        count * (6 + 2 * ranks)
    }

    fn few(&self, id: &UniqueId) {
        let communicator = self.join(id, false);
        assert!(self.of_type::<f32>(&communicator, 100) > 0);
        println!("roost ok");
    }

    /// Reduces for ever. A death is heard of by a line, as supervision would tell it.
    fn death(&self, mut id: UniqueId) {
        loop {
            let options = Options::default();
            let communicator = self
                .collectives
                .join(&id, self.ranks, self.number, &options)
                .unwrap();
            let error = std::thread::scope(|scope| {
                let loops = scope.spawn(|| reduce_until_it_fails(&communicator));
                let line = self.lines.recv().unwrap();
                let dead = line.strip_prefix("dead ").unwrap();
                let start = Instant::now();
                let stuck = abort_all(
                    std::slice::from_ref(&communicator),
                    &format!("rank {dead} died"),
                    Duration::from_secs(2),
                );
                if !stuck.is_empty() {
                    println!("roost stuck {} of 1", stuck.len());
                    return None;
                }
                let (error, when) = loops.join().unwrap();
                Some((error, when - start))
            });
            let Some((error, time)) = error else { return };
            println!("roost aborted {:.3} {error}", time.as_secs_f64() * 1000.0);
            let Ok(line) = self.lines.recv() else { return };
            id = parse(line.strip_prefix("again ").unwrap());
        }
    }

    fn split(&self, id: &UniqueId) {
        let communicator = self.join(id, false);
        let child = communicator
            .split(Some(self.number % 2), -self.number.cast_signed(), LONG)
            .unwrap()
            .unwrap();
        child.settle(LONG).unwrap();
        let half = self.ranks / 2;
        assert_eq!(
            child.size_and_rank().unwrap(),
            (half, half - 1 - self.number / 2),
            "the keys turn the order round"
        );
        assert!(communicator.split(None, 0, LONG).unwrap().is_none());
        let grandchild = child.split(Some(0), 0, LONG).unwrap().unwrap();
        let error = std::thread::scope(|scope| {
            let loops = scope.spawn(|| reduce_until_it_fails(&grandchild));
            let line = self.lines.recv().unwrap();
            let why = format!("rank {} died", line.strip_prefix("dead ").unwrap());
            let stuck = abort_all(std::slice::from_ref(&communicator), &why, LONG);
            assert!(stuck.is_empty());
            loops.join().unwrap().0
        });
        assert!(child.aborted().is_some() && grandchild.aborted().is_some());
        println!("roost aborted {error}");
    }

    fn error(&self, id: &UniqueId) {
        let communicator = self.join(id, false);
        println!("roost error {}", reduce_until_it_fails(&communicator).0);
    }

    fn late(&self, id: &UniqueId) {
        let communicator = self.join(id, false);
        let (from, mut to) = ([1.0_f32; 4], [0.0_f32; 4]);
        for _ in 0..3 {
            // SAFETY: both live until the process ends.
            unsafe { communicator.all_reduce(on(&from, &mut to, 4, DataType::F32), ReduceOp::Sum) }.unwrap();
            if let Err(error) = communicator.settle(Duration::from_millis(300)) {
                println!("roost late {error}");
                let stuck = abort_all(&[communicator], "a rank is late", LONG);
                assert!(stuck.is_empty());
                return;
            }
        }
    }
}

/// The error that ends it, and when it came.
fn reduce_until_it_fails(communicator: &Communicator) -> (GpuError, Instant) {
    let (from, mut to) = (vec![1.0_f32; 50_000], vec![0.0_f32; 50_000]);
    let mut begun = communicator.settle(LONG);
    let mut round = 0;
    loop {
        if let Err(error) = begun {
            let when = Instant::now();
            // The memory stays while the library may write it. One that has failed by itself is aborted when it is dropped.
            assert!(communicator.aborted().is_none() || communicator.wait_until_over(LONG));
            return (error, when);
        }
        if round == 1 {
            println!("roost inside");
        }
        round += 1;
        let both = on(&from, &mut to, 50_000, DataType::F32);
        // SAFETY: both live until the call is settled, or the library has taken the communicator down.
        let reducing = unsafe { communicator.all_reduce(both, ReduceOp::Sum) };
        begun = reducing.and_then(|_| communicator.settle(LONG));
    }
}

trait Settled {
    fn settled(&self, begun: Result<Progress, GpuError>);
}

impl Settled for Communicator {
    fn settled(&self, begun: Result<Progress, GpuError>) {
        if begun.unwrap() == Progress::Pending {
            self.settle(LONG).unwrap();
        }
    }
}
