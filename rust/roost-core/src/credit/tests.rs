use super::*;
use crate::wire::{OneRun, Run, RunsBuffer};

const SMALL: Amount = Amount {
    messages: 8,
    bytes: 100,
};

#[test]
fn a_stopped_sender_goes_on_after_a_quarter() {
    let (mut sender, mut receiver) = (SendWindow::default(), ReceiveWindow::default());
    for _ in 0..8 {
        assert!(sender.take(SMALL, 1));
        receiver.enter(SMALL, 1).unwrap();
    }
    assert!(!sender.take(SMALL, 1));
    assert_eq!(receiver.take(SMALL, 1), None);
    let credit = receiver.take(SMALL, 1).unwrap();
    assert_eq!(
        credit,
        Amount {
            messages: 2,
            bytes: 2
        }
    );
    assert_eq!(sender.grant(SMALL, credit), Ok(true));
    assert_eq!(sender.out().messages, 6);
}

#[test]
fn what_was_taken_is_settled_once() {
    let (mut sender, mut receiver) = (SendWindow::default(), ReceiveWindow::default());
    assert!(sender.take(SMALL, 1));
    receiver.enter(SMALL, 1).unwrap();
    assert_eq!(receiver.settle(), None, "it lies in the mailbox");
    assert_eq!(receiver.take(SMALL, 1), None);
    let credit = receiver.settle().unwrap();
    assert_eq!(sender.grant(SMALL, credit), Ok(false));
    assert_eq!(sender.out(), Amount::default());
    assert_eq!(receiver.settle(), None);
}

#[test]
fn one_message_may_pass_the_bytes_of_the_window() {
    let mut sender = SendWindow::default();
    assert!(sender.take(SMALL, 99));
    assert!(sender.take(SMALL, 4_000));
    assert!(!sender.take(SMALL, 0));
}

#[test]
fn what_cannot_be_sent_gives_its_credit_back() {
    let mut windows = SendWindows::new(SMALL, 3);
    let mut both = RunsBuffer::new();
    both.push(Run {
        slot: 0,
        count: 2,
        slot_stride: 2,
        rank: 0,
        rank_stride: 1,
    })
    .unwrap();
    assert!(windows.take(0, 10));
    assert!(windows.take_all(both.as_runs(), 4_000));
    assert!(!windows.has_room(0) && !windows.has_room(2));
    windows.give_back_all(both.as_runs(), 4_000);
    assert!(windows.has_room(0) && windows.has_room(2));
    let one = Amount {
        messages: 1,
        bytes: 10,
    };
    assert_eq!((windows.sent(0), windows.sent(2)), (one, Amount::default()));
}

#[test]
fn impossible_credits_are_refused() {
    let mut sender = SendWindow::default();
    assert!(sender.take(SMALL, 10));
    let one = Amount {
        messages: 1,
        bytes: 10,
    };
    assert!(matches!(
        sender.grant(SMALL, Amount { messages: 2, ..one }),
        Err(CreditError::Impossible { .. })
    ));
    assert!(matches!(
        sender.grant(SMALL, Amount { bytes: 11, ..one }),
        Err(CreditError::Impossible { .. })
    ));
    assert_eq!(sender.grant(SMALL, one), Ok(false));
    assert!(matches!(
        sender.grant(SMALL, Amount::default()),
        Err(CreditError::Impossible { .. })
    ));
}

#[test]
fn a_sender_without_credit_is_caught() {
    let mut receiver = ReceiveWindow::default();
    for _ in 0..8 {
        receiver.enter(SMALL, 0).unwrap();
    }
    assert!(matches!(
        receiver.enter(SMALL, 0),
        Err(CreditError::Overrun { .. })
    ));
}

#[test]
fn a_cast_takes_all_or_nothing() {
    let mut windows = SendWindows::new(
        Amount {
            messages: 1,
            bytes: 100,
        },
        4,
    );
    let second = OneRun::new(2, 0).unwrap();
    assert!(windows.take_all(second.as_runs(), 1));
    let mut all = RunsBuffer::new();
    all.push(Run {
        slot: 0,
        count: 4,
        slot_stride: 1,
        rank: 0,
        rank_stride: 1,
    })
    .unwrap();
    assert!(!windows.take_all(all.as_runs(), 1));
    assert!(windows.has_room(0) && windows.has_room(3));
    assert_eq!(
        windows.grant(
            2,
            Amount {
                messages: 1,
                bytes: 1
            }
        ),
        Ok(true)
    );
    assert!(windows.take_all(all.as_runs(), 1));
    assert!(!windows.has_room(0) && !windows.has_room(4));
    assert!(matches!(
        windows.grant(4, Amount::default()),
        Err(CreditError::UnknownSlot { slot: 4, slots: 4 })
    ));
}

#[test]
fn the_queue_holds_one_large_message_or_many_small_ones() {
    let mut bound = QueueBound::new(SMALL);
    bound.enter(500).unwrap();
    assert_eq!(
        bound.enter(1).unwrap_err().waiting,
        Amount {
            messages: 1,
            bytes: 500
        }
    );
    bound.leave(500);
    for _ in 0..8 {
        bound.enter(0).unwrap();
    }
    assert!(bound.enter(0).is_err());
}
