//! The secret that all processes of a run know.
use super::super::secret::ConnectionEnd;
use super::super::tcp::timed::TimedConnection;
use super::strangers::{knowing, secret};
use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::spawn;

/// Kills: a secret that is not asked for, one that only one side must know, a rank that is not told why it is
/// turned away, a meeting with other machines that needs no secret, an answer that a stranger could use
/// again.
#[test]
fn the_secret_is_shown_by_both_sides() {
    let (own, other, short) =
        (secret("a secret of these two"), secret("another secret than theirs"), Duration::from_secs(1));
    for theirs in [&other, &Secret::default()] {
        let port = port();
        let [zero, one] = scope(|threads| {
            let zero = threads.spawn(|| met(&knowing(Launch::nearby(0, 2, port), &own), "", short));
            let one = threads.spawn(|| met(&knowing(Launch::nearby(1, 2, port), theirs), "", short));
            [zero, one].map(|meeting| meeting.join().unwrap().unwrap_err())
        });
        let says = format!(
            "the process at 127.0.0.1:{port} does not know the secret of rank 1; \
             all ranks need the same secret"
        );
        assert_eq!(one, says);
        let says = format!(
            "rank 1 did not connect to 127.0.0.1:{port} within 1s; \
             connections refused for no or another secret, or no greeting: 1"
        );
        assert_eq!(zero, says);
    }
    for rank in [0, 1] {
        let there = Launch { address: Some(("192.0.2.7".into(), 29_500)), ..Launch::nearby(rank, 2, 0) };
        let refused = met(&there, "", LIMIT).unwrap_err();
        assert!(refused.starts_with("MASTER_ADDR is 192.0.2.7"), "{refused}");
        assert!(refused.contains("there is no secret; set EQUIPART_SECRET or --secret"), "{refused}");
    }
    let ends = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    };
    let said: Vec<Vec<u8>> = (0..2)
        .map(|_| {
            let (near, far) = ends();
            let listens = own.clone();
            let far = spawn(move || {
                listens.displayed(
                    &mut TimedConnection::new(&far, Instant::now() + LIMIT),
                    ConnectionEnd::Listens,
                )
            });
            let mut said = b"equipart".to_vec();
            said.extend([7; 32]);
            (&near).write_all(&said).unwrap();
            let mut answer = vec![0; 72];
            (&near).read_exact(&mut answer).unwrap();
            (&near).write_all(&answer[40..]).unwrap(); // its own proof, sent back
            assert_eq!(far.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
            answer
        })
        .collect();
    assert_ne!(said[0], said[1], "the same nonce is answered otherwise each time");
}

/// Records what two ends that know the secret send each other, and sends it to another end. Kills: a proof
/// that does not depend on both ends' nonces, so that who has heard it once can give it again.
#[test]
fn a_recorded_proof_proves_nothing_again() {
    let own = secret("a secret of these two");
    let end = |at: TcpStream, by: ConnectionEnd| {
        let own = own.clone();
        spawn(move || own.displayed(&mut TimedConnection::new(&at, Instant::now() + LIMIT), by))
    };
    let pair = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    };
    let passed = |from: &TcpStream, to: &TcpStream, bytes: usize| {
        let mut said = vec![0; bytes];
        (&*from).read_exact(&mut said).unwrap();
        (&*to).write_all(&said).unwrap();
        said
    };
    let ((connects, near), (far, listens)) = (pair(), pair());
    let ends = [end(connects, ConnectionEnd::Connects), end(listens, ConnectionEnd::Listens)];
    let (greeting, answer) = (passed(&near, &far, 40), passed(&far, &near, 72));
    let proof = passed(&near, &far, 32);
    assert!(ends.map(|end| end.join().unwrap()).iter().all(Result::is_ok));

    let (near, listens) = pair();
    let listens = end(listens, ConnectionEnd::Listens);
    (&near).write_all(&greeting).unwrap();
    (&near).read_exact(&mut [0; 72]).unwrap();
    (&near).write_all(&proof).unwrap();
    let denied = std::io::ErrorKind::PermissionDenied;
    assert_eq!(listens.join().unwrap().unwrap_err().kind(), denied, "of who connected");
    let (connects, near) = pair();
    let connects = end(connects, ConnectionEnd::Connects);
    (&near).read_exact(&mut [0; 40]).unwrap();
    (&near).write_all(&answer).unwrap();
    assert_eq!(connects.join().unwrap().unwrap_err().kind(), denied, "of who listened");
}
