use std::collections::VecDeque;

use super::*;
use crate::limits::CARRIERS_REMEMBERED_MAX;

fn host(number: usize) -> HostId {
    HostId::new(number as u64 + 1).unwrap()
}

fn proc(number: usize) -> ProcId {
    ProcId::new(number as u64 + 1_000_000).unwrap()
}

fn destinations(hosts: usize, procs: usize) -> Vec<Destination> {
    let parcel = |number| Parcel {
        proc: proc(number),
        session: number as u64,
        frames: format!("head {number} the same for all").into_bytes().into(),
    };
    let destination = |number| Destination {
        host: host(number),
        addresses: vec![format!("10.0.0.1:{number}")],
        parcels: (number * procs..(number + 1) * procs).map(parcel).collect(),
    };
    (0..hosts).map(destination).collect()
}

fn outputs(relay: &mut Relay) -> Vec<Output> {
    std::iter::from_fn(|| relay.next_output()).collect()
}

/// What a carrier costs: words written by the busiest host, steps from the root to the last, bytes written by the root and by
/// the busiest other host.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    words: usize,
    steps: usize,
    root_bytes: usize,
    bytes: usize,
}

/// Has every host answer for all its procs at once, and adds up what that costs; checks that all get theirs, once.
fn cost(hosts: usize, procs: usize) -> Cost {
    let written = |word: &Word| postcard::to_stdvec(word).unwrap().len();
    let mut relays: Vec<Relay> = (0..hosts).map(|_| Relay::default()).collect();
    let (mut words, mut bytes) = (vec![0; hosts + 1], vec![0; hosts + 1]);
    let mut root = Relay::default();
    root.begin(Carrier::new(1, proc(0), destinations(hosts, procs)));
    let mut queue: VecDeque<(Way, usize, Carrier)> = VecDeque::new();
    let mut send = |at: usize, step: usize, outputs: Vec<Output>, queue: &mut VecDeque<_>| {
        let mut delivered = Vec::new();
        for output in outputs {
            match output {
                Output::Carry(carrier) => {
                    words[at] += 1;
                    bytes[at] += written(&Word::Carrier(carrier.clone()));
                    let from = at
                        .checked_sub(1)
                        .map_or(Way::Root, |number| Way::Host(host(number)));
                    queue.push_back((from, step + 1, carrier));
                }
                Output::Deliver { to, .. } => delivered.push(to),
                Output::Gather { .. } => panic!("nothing was answered"),
            }
        }
        delivered
    };
    assert_eq!(send(0, 0, outputs(&mut root), &mut queue), []);
    let (mut reached, mut steps, mut order) = (Vec::new(), 0, Vec::new());
    while let Some((from, step, carrier)) = queue.pop_front() {
        let number = usize::try_from(carrier.hosts[0].host.get()).unwrap();
        let relay = &mut relays[number - 1];
        relay.carried(host(number - 1), from, carrier);
        reached.extend(send(number, step, outputs(relay), &mut queue));
        steps = steps.max(step);
        order.push(number);
    }
    reached.sort_unstable();
    assert_eq!(reached, (0..hosts * procs).map(proc).collect::<Vec<_>>());
    let mut answered = 0;
    // The last to be reached answer first.
    for number in order.into_iter().rev() {
        for one in (number - 1) * procs..number * procs {
            let answer = Parcel {
                proc: proc(one),
                session: one as u64,
                frames: Bytes::from(&b"an answer"[..]),
            };
            relays[number - 1].answered(1, answer);
        }
        relays[number - 1].end_turn();
        for output in outputs(&mut relays[number - 1]) {
            let Output::Gather { to, gathered } = output else {
                panic!("{output:?}")
            };
            words[number] += 1;
            bytes[number] += written(&Word::Gathered(gathered.clone()));
            match to {
                Way::Root => answered += gathered.parcels.len(),
                Way::Host(to) => relays[usize::try_from(to.get()).unwrap() - 1].gathered(gathered),
            }
        }
    }
    assert_eq!(answered, hosts * procs);
    Cost {
        words: *words.iter().max().unwrap(),
        steps,
        root_bytes: bytes[0],
        bytes: *bytes[1..].iter().max().unwrap(),
    }
}

#[test]
fn what_a_cast_costs_grows_as_a_tree_does() {
    for (hosts, steps) in [(1, 1), (8, 1), (64, 2), (512, 3), (1_000, 4), (4_000, 4)] {
        let cost = cost(hosts, 4);
        println!("{hosts} hosts of 4 procs: {cost:?}");
        // Eight that are passed on to, and the answers.
        assert!(cost.words <= CARRIER_HOSTS_MAX + 1, "{hosts} hosts: {cost:?}");
        assert!(cost.steps <= steps, "{hosts} hosts: {cost:?}");
        // What each proc's frame begins with has to leave the root; no other host has more than its share of it.
        assert!(cost.root_bytes <= 200 * hosts + 200, "{hosts} hosts: {cost:?}");
        assert!(
            cost.bytes <= cost.root_bytes / hosts.clamp(1, 4) + 500,
            "{hosts} hosts: {cost:?}"
        );
    }
}

#[test]
fn what_all_frames_end_with_travels_once_and_each_gets_its_own() {
    let mut relay = Relay::default();
    let carrier = Carrier::new(7, proc(0), destinations(1, 3));
    assert_eq!(&*carrier.tail, b" the same for all");
    assert_eq!(&*carrier.hosts[0].parcels[2].frames, b"head 2");
    relay.carried(host(0), Way::Root, carrier);
    let frames = |output: &Output| match output {
        Output::Deliver {
            frames, carrier: 7, ..
        } => String::from_utf8(frames.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    let delivered: Vec<_> = outputs(&mut relay).iter().map(frames).collect();
    let expected = [0, 1, 2].map(|number| format!("head {number} the same for all"));
    assert_eq!(delivered, expected);
    // Frames that are wholly the same, and none.
    let alone = Carrier::new(1, proc(0), destinations(1, 1));
    assert_eq!(alone.hosts[0].parcels[0].frames.len(), 0);
    assert_eq!(Carrier::new(1, proc(0), Vec::new()).tail.len(), 0);
}

#[test]
fn a_host_that_is_not_reached_is_left_out() {
    let mut relay = Relay::default();
    relay.begin(Carrier::new(1, proc(0), destinations(20, 1)));
    let Some(Output::Carry(carrier)) = relay.next_output() else {
        panic!("eight carriers")
    };
    assert_eq!(outputs(&mut relay).len(), CARRIER_HOSTS_MAX - 1);
    let others: Vec<HostId> = carrier.hosts[1..].iter().map(|one| one.host).collect();
    relay.unreached(carrier);
    let firsts = |output: Output| match output {
        Output::Carry(carrier) => carrier.hosts[0].host,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        outputs(&mut relay).into_iter().map(firsts).collect::<Vec<_>>(),
        others
    );
    // And nobody is left.
    relay.unreached(Carrier::new(1, proc(0), destinations(1, 1)));
    assert_eq!(outputs(&mut relay), []);
}

#[test]
fn answers_that_are_ready_go_together_to_where_the_carrier_came_from() {
    let mut relay = Relay::default();
    relay.carried(
        host(0),
        Way::Host(host(9)),
        Carrier::new(1, proc(0), destinations(1, 0)),
    );
    let answer = |number| Parcel {
        proc: proc(number),
        session: 1,
        frames: Bytes::from(Vec::new()),
    };
    relay.answered(1, answer(1));
    relay.gathered(Gathered {
        carrier: 1,
        parcels: vec![answer(2)],
    });
    // Of a carrier that nobody remembers.
    relay.answered(99, answer(3));
    assert_eq!(outputs(&mut relay), []);
    relay.end_turn();
    let gather = |to, carrier, parcels| Output::Gather {
        to,
        gathered: Gathered { carrier, parcels },
    };
    assert_eq!(
        outputs(&mut relay),
        [
            gather(Way::Host(host(9)), 1, vec![answer(1), answer(2)]),
            gather(Way::Root, 99, vec![answer(3)]),
        ]
    );
    relay.end_turn();
    assert_eq!(outputs(&mut relay), []);
    for number in 2..=CARRIERS_REMEMBERED_MAX as u64 + 1 {
        relay.carried(
            host(0),
            Way::Root,
            Carrier::new(number, proc(0), destinations(1, 0)),
        );
    }
    relay.answered(1, answer(1));
    relay.end_turn();
    assert_eq!(outputs(&mut relay), [gather(Way::Root, 1, vec![answer(1)])]);
}

/// What is on its way through other hosts when its proc has ended is said again, straight to the root.
#[test]
fn what_a_proc_has_answered_last_goes_before_the_news_of_its_end() {
    use crate::session::{Session, SessionConfig};
    use crate::wire::Cancel;
    let mut relay = Relay::default();
    let way = Way::Host(host(9));
    relay.carried(host(0), way, Carrier::new(1, proc(0), destinations(1, 0)));
    let mut session = Session::new(SessionConfig::default());
    let mut answer = |number, is_numbered| {
        if is_numbered {
            let (call, rank, flags) = (1, 0, 0);
            session.push(&Cancel { call, rank, flags }, &[]).unwrap();
        } else {
            session.ask_ack();
        }
        let frames = session.unsent().collect::<Vec<_>>().concat();
        session.sent(frames.len());
        Parcel {
            proc: proc(number),
            session: 1,
            frames: frames.into(),
        }
    };
    let (first, last, other, thanks) = (
        answer(1, true),
        answer(1, true),
        answer(2, true),
        answer(1, false),
    );
    for one in [&first, &last, &other, &thanks] {
        relay.answered(1, one.clone());
    }
    relay.end_turn();
    assert_eq!(outputs(&mut relay).len(), 1);
    // An acknowledgement alone takes no answer's place.
    let parcels = vec![last];
    assert_eq!(relay.ended(proc(1)), Some(Gathered { carrier: 1, parcels }));
    assert_eq!(relay.ended(proc(1)), None);
    // And what its agent has just heard.
    relay.answered(99, first.clone());
    let parcels = vec![first];
    assert_eq!(relay.ended(proc(1)), Some(Gathered { carrier: 99, parcels }));
    assert_eq!(relay.ended(proc(3)), None);
}

#[test]
fn a_carrier_for_another_host_is_dropped() {
    let mut relay = Relay::default();
    relay.carried(host(5), Way::Root, Carrier::new(1, proc(0), destinations(3, 1)));
    assert_eq!(outputs(&mut relay), []);
}

/// What hosts say to each other does not change unseen: `docs/wire.md` describes it.
#[test]
fn the_bytes_are_those_of_the_page() {
    let parcel = Parcel {
        proc: proc(0),
        session: 300,
        frames: Bytes::from(&b"front"[..]),
    };
    let carrier = Word::Carrier(Carrier {
        number: 1,
        from: proc(1),
        tail: Bytes::from(&b"tail"[..]),
        hosts: vec![Destination {
            host: host(0),
            addresses: vec!["h:1".to_owned()],
            parcels: vec![parcel.clone()],
        }],
    });
    let gathered = Word::Gathered(Gathered {
        carrier: 1,
        parcels: vec![parcel],
    });
    for (word, golden) in [
        (
            &carrier,
            &b"\x00\x01\xc1\x84=\x04tail\x01\x01\x01\x03h:1\x01\xc0\x84=\xac\x02\x05front"[..],
        ),
        (&gathered, &b"\x01\x01\x01\xc0\x84=\xac\x02\x05front"[..]),
    ] {
        let bytes = postcard::to_stdvec(word).unwrap();
        assert_eq!(
            bytes.escape_ascii().to_string(),
            golden.escape_ascii().to_string()
        );
        assert_eq!(&postcard::from_bytes::<Word>(golden).unwrap(), word);
    }
}

#[test]
fn what_is_much_goes_in_several() {
    let bytes = |one: &usize| *one;
    let most = crate::limits::CARRIER_FRAMES_BYTES_MAX;
    assert_eq!(batches(vec![], bytes), Vec::<Vec<usize>>::new());
    assert_eq!(
        batches(vec![1, 2, most - 3, 1, 2], bytes),
        [vec![1, 2, most - 3], vec![1, 2]]
    );
    assert_eq!(
        batches(vec![most, most, 1], bytes),
        [vec![most], vec![most], vec![1]]
    );
}
