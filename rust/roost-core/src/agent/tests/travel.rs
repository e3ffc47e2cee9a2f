//! What the agent hears and says as bytes: it goes between hosts.

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::control::{Envelope, decode_large, encode};

fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    let (packet, long) = encode(value).expect("within the limits");
    // Behind the byte that says that the rest is the message.
    long.unwrap_or_else(|| packet[1..].to_vec())
}

fn back<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    decode_large(bytes).ok()
}

fn texts() -> (String, String) {
    ("reason".to_owned(), "stderr".to_owned())
}

fn inputs() -> Vec<Input> {
    let (proc, incarnation, template) = (proc(1), Incarnation(2), TemplateId(3));
    let (reason, stderr) = texts();
    let message = |message| Input::Message {
        from: proc,
        message,
        descriptor: None,
    };
    let seen = Seen {
        exit: Some(Exit::Signal(9)),
        likely: Some(Exit::Code(1)),
        oom: true,
        stderr: stderr.clone(),
        started: vec![1, u64::MAX],
        said: vec![2],
    };
    vec![
        message(ToAgent::Up),
        message(ToAgent::Spawn(Box::new(warm(&[1, 2])))),
        Input::TemplateReady(template),
        Input::TemplateRefused {
            template,
            reason: reason.clone(),
        },
        Input::TemplateFailed {
            template,
            reason: reason.clone(),
            stderr: stderr.clone(),
        },
        Input::TemplateEnded {
            template,
            killed: true,
            reason: reason.clone(),
            stderr,
        },
        Input::Launched {
            proc,
            incarnation,
            pid: 7,
        },
        Input::LaunchFailed {
            proc,
            incarnation,
            reason: reason.clone(),
        },
        Input::LaunchLost { proc, incarnation },
        Input::Died {
            proc,
            incarnation,
            seen,
        },
        Input::Exited {
            proc,
            incarnation,
            exit: Exit::Code(0),
        },
        Input::Gone { proc, incarnation },
        Input::PairFailed {
            first: proc,
            second: proc,
            reason: reason.clone(),
        },
        Input::LinkFailed {
            asks: (proc, incarnation),
            serves: (proc, incarnation),
            reason,
        },
    ]
}

/// Of all kinds: what an agent said in a life with lanes, signals, spares and a host that was lost.
fn outputs() -> Vec<Output> {
    let mut rig = Rig::with_templates();
    rig.join(2);
    let spawned = spares::with_spares(warm(&[1, 2, 3]), 1, policy(3));
    let spawned = hosts::on(spawned, &[OWN, 2, 2, 2]);
    let mut said = rig.outputs_of(hosts::said(DRIVER, ToAgent::Spawn(Box::new(spawned))));
    let mut at = 0;
    while at < said.len() {
        let answer = match &said[at].1 {
            Output::StartTemplate { template, .. } => Some(Input::TemplateReady(*template)),
            Output::Launch(order) => Some(Input::Launched {
                proc: order.proc,
                incarnation: order.incarnation,
                pid: 7,
            }),
            _ => None,
        };
        said.extend(answer.into_iter().flat_map(|input| rig.outputs_of(input)));
        at += 1;
    }
    for number in [1, 2, 3, 101] {
        said.extend(rig.outputs_of(hosts::said(number, ToAgent::Up)));
    }
    let died = Input::Died {
        proc: proc(2),
        incarnation: Incarnation(0),
        seen: Seen {
            exit: Some(Exit::Signal(9)),
            ..Seen::default()
        },
    };
    let gone = Input::Gone {
        proc: proc(2),
        incarnation: Incarnation(0),
    };
    let kill = ToAgent::Kill {
        procs: vec![proc(1)],
        reason: None,
    };
    let asked = [
        hosts::said(2, ToAgent::Connect { proc: proc(3) }),
        hosts::said(1, ToAgent::Connect { proc: proc(3) }),
        hosts::said(2, linking::want(3, 0)),
        hosts::said(1, linking::want(3, 0)),
        died,
        gone,
        hosts::said(DRIVER, kill),
    ];
    for input in asked {
        said.extend(rig.outputs_of(input));
    }
    said.into_iter().map(|(_, output)| output).collect()
}

#[test]
fn what_is_said_arrives() {
    for input in inputs() {
        assert_eq!(back::<Input>(&bytes(&input)), Some(input));
    }
    let mut kinds = BTreeSet::new();
    for output in outputs() {
        let written = bytes(&output);
        kinds.insert(written[0]);
        assert_eq!(back::<Output>(&written), Some(output));
    }
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        "all kinds"
    );
}

#[test]
fn a_descriptor_stays_where_it_is() {
    let descriptor = Some(Token(9));
    let input = Input::Message {
        from: proc(1),
        message: ToAgent::Up,
        descriptor,
    };
    let arrived = back::<Input>(&bytes(&input));
    assert!(matches!(arrived, Some(Input::Message { descriptor: None, .. })));
}

#[test]
fn what_is_cut_short_is_refused() {
    for written in inputs().iter().map(bytes) {
        for length in 0..written.len() {
            assert_eq!(back::<Input>(&written[..length]), None, "{length} of {written:?}");
        }
    }
    for written in outputs().iter().map(bytes) {
        for length in 0..written.len() {
            assert_eq!(
                back::<Output>(&written[..length]),
                None,
                "{length} of {written:?}"
            );
        }
    }
}

/// A length that nothing follows makes no room for it: an attempt at this much would end the process.
#[test]
fn what_is_only_announced_costs_nothing() {
    let most = [0xff; 9].into_iter().chain([1]);
    let most: Vec<u8> = most.collect();
    // A message to so many, an environment of so many, a page of so many, a text of so many bytes.
    let to_many = [&[3], &most[..]].concat();
    let environ = [&[0, 0, 0, 0], &most[..]].concat();
    assert_eq!(back::<Output>(&to_many), None);
    assert_eq!(back::<Output>(&environ), None);
    let page = [&[7, 1, 0, 0, 0, 0, 0], &most[..]].concat();
    let text = [&[2, 0], &most[..]].concat();
    assert_eq!(back::<Input>(&page), None);
    assert_eq!(back::<Input>(&text), None);
    let spawn = bytes(&inputs()[1]);
    for at in 0..spawn.len() {
        let hostile = [&spawn[..at], &most[..], &spawn[at..]].concat();
        let _ = back::<Input>(&hostile);
    }
}

#[test]
fn a_number_that_is_none_is_refused() {
    assert_eq!(back::<Output>(&[250]), None);
    assert_eq!(back::<Input>(&[250]), None);
    // The driver's control thread may say these; a host that does is not listened to, see `handle_from`.
    assert!(matches!(
        encode(&Input::Close).map(|(packet, _)| packet.len()),
        Ok(2)
    ));
    let Ok(Envelope::Inline(Input::Tick)) = crate::control::decode(&[0, bytes(&Input::Tick)[0]]) else {
        panic!("it is an input")
    };
}

proptest! {
    #[test]
    fn any_bytes_are_something_or_refused(any in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = back::<Input>(&any);
        let _ = back::<Output>(&any);
    }

    #[test]
    fn changed_bytes_are_something_or_refused(which in 0_usize..1_000, at in 0_usize..10_000, to in any::<u8>()) {
        let said = outputs();
        let mut written = bytes(&said[which % said.len()]);
        let length = written.len();
        written[at % length] = to;
        let _ = back::<Output>(&written);
    }
}
