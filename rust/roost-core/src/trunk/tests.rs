use super::pulse::{Pulse, RootClock, Sign};
use super::*;
use crate::limits::{BEAT_NS, SILENCE_NS, TRUNK_RECORD_BYTES_MAX};

const SECOND: u64 = 1_000_000_000;

fn warning(length: usize) -> FromHost {
    FromHost::Warning {
        text: "x".repeat(length),
    }
}

/// Move all unsent bytes of one end to the other, which sees them in pieces of this length.
fn carry<O, I, P>(from: &mut Trunk<O, I>, to: &mut Trunk<P, O>, piece: usize) -> Vec<O>
where
    O: Serialize + DeserializeOwned,
    I: Serialize + DeserializeOwned,
    P: Serialize + DeserializeOwned,
{
    let (mut messages, mut input) = (Vec::new(), Vec::new());
    while from.session().has_unsent() {
        let bytes: Vec<u8> = from
            .session()
            .unsent()
            .next()
            .expect("there is some")
            .iter()
            .copied()
            .take(piece)
            .collect();
        from.session().sent(bytes.len());
        input.extend(bytes);
        let (more, used) = to.receive(0, &input).expect("what a trunk sends is right");
        messages.extend(more);
        input.drain(..used);
    }
    assert!(input.is_empty());
    messages
}

#[test]
fn messages_of_any_size_arrive_whole_and_in_order() {
    let (mut host, mut root) = (Trunk::<FromHost, ToHost>::new(), Trunk::<ToHost, FromHost>::new());
    let sent: Vec<FromHost> = [
        1,
        TRUNK_PIECE_BYTES - 4,
        TRUNK_PIECE_BYTES,
        3 * TRUNK_PIECE_BYTES + 1,
        0,
    ]
    .map(warning)
    .into();
    for message in &sent {
        host.send(message).unwrap();
    }
    assert_eq!(carry(&mut host, &mut root, 1_000), sent);
}

#[test]
fn what_was_not_received_comes_over_the_next_connection_once() {
    let (mut host, mut root) = (Trunk::<FromHost, ToHost>::new(), Trunk::<ToHost, FromHost>::new());
    host.send(&warning(1)).unwrap();
    assert_eq!(carry(&mut host, &mut root, 10), [warning(1)]);
    host.send(&warning(2)).unwrap();
    host.send(&warning(3)).unwrap();
    let unsent = host.session().unsent_bytes();
    // Written, and lost with the connection.
    host.session().sent(unsent);
    let received = root.session().received();
    host.resume(received).unwrap();
    assert_eq!(carry(&mut host, &mut root, 7), [warning(2), warning(3)]);
}

#[test]
fn a_message_that_fits_nowhere_is_an_error_and_breaks_nothing() {
    let mut root = Trunk::<ToHost, FromHost>::new();
    let mut other = Trunk::<ToHost, FromHost>::new();
    // The bytes of another kind of message.
    other.send(&ToHost::Fence).unwrap();
    let bytes: Vec<u8> = other.session().unsent().flatten().copied().collect();
    let result = root.receive(0, &bytes);
    assert!(matches!(result, Err(TrunkError::Message(_))), "{result:?}");
    assert!(other.send(&ToHost::Fence).is_ok());
}

#[test]
fn records_are_read_from_any_pieces_and_bounded_by_their_first_bytes() {
    let greeting = Greeting {
        host: HostId::new(1).unwrap(),
        name: "a".to_owned(),
        advertised: vec!["10.0.0.1:7000".to_owned()],
        job: None,
        roost: "0.1.0".to_owned(),
        python: "3.11".to_owned(),
    };
    let bytes = write_record(&greeting).unwrap();
    let mut reader = RecordReader::default();
    for byte in &bytes[..bytes.len() - 1] {
        reader.take(&[*byte]);
        assert_eq!(reader.record::<Greeting>().unwrap(), None);
    }
    reader.take(&bytes[bytes.len() - 1..]);
    reader.take(b"frames");
    assert_eq!(reader.record().unwrap(), Some(greeting));
    assert_eq!(reader.rest(), b"frames");
    let mut huge = RecordReader::default();
    let length = u32::try_from(TRUNK_RECORD_BYTES_MAX + 1).unwrap();
    huge.take(&length.to_le_bytes());
    assert!(huge.record::<Greeting>().is_err());
}

#[test]
fn a_host_is_lost_after_its_silence_and_not_before() {
    let mut pulse = Pulse::new(0, BEAT_NS, SILENCE_NS);
    let mut beats = 0;
    let mut now_ns = 0;
    loop {
        match pulse.look(now_ns) {
            Some(Sign::Beat) => beats += 1,
            Some(Sign::Lost { silence_ns }) => {
                assert_eq!(silence_ns, SILENCE_NS);
                break;
            }
            None => {}
        }
        if now_ns == 3 * SECOND {
            pulse.heard(now_ns);
        }
        now_ns = pulse.next_wakeup_ns().max(now_ns + 1);
    }
    assert_eq!(now_ns, 3 * SECOND + SILENCE_NS);
    assert_eq!(beats, 13);
}

#[test]
fn a_root_that_was_stopped_itself_takes_its_own_silence_for_nobodys_death() {
    let mut pulse = Pulse::new(0, BEAT_NS, SILENCE_NS);
    pulse.look(SECOND);
    assert_ne!(
        pulse.look(60 * SECOND),
        Some(Sign::Lost {
            silence_ns: 60 * SECOND
        })
    );
    assert_eq!(pulse.look(61 * SECOND), Some(Sign::Beat));
    // A host that is really gone is found out all the same.
    let lost = (62..80).find(|second| matches!(pulse.look(second * SECOND), Some(Sign::Lost { .. })));
    assert!(lost.is_some_and(|second| second <= 72), "{lost:?}");
}

#[test]
fn the_root_clock_is_known_by_its_fastest_beat() {
    let mut clock = RootClock::default();
    // The root is 100 s ahead; beats take from 1 ms to 9 s.
    let mut offset = None;
    for (sent, took) in [(1, 5_000), (2, 9_000), (3, 1), (4, 700)] {
        let (sent_ns, took_ns) = (sent * SECOND, took * 1_000_000);
        offset = clock.beat(sent_ns + took_ns, sent_ns + 100 * SECOND).or(offset);
    }
    assert_eq!(offset, Some(100 * 1_000_000_000 - 1_000_000));
    assert_eq!(clock.own_ns(160 * SECOND), 60 * SECOND + 1_000_000);
    // The same again is nothing new.
    assert_eq!(clock.beat(10 * SECOND + 1_000_000, 110 * SECOND), None);
}
