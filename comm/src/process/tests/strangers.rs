//! Others that connect: strangers, ranks that go or stop, and ranks that tell what none would.
use super::super::frame::{LONGEST, ProcessReport, encoded, receive, send, send_frame};
use super::super::tcp::door::reached;
use super::super::tcp::greeting::{Greeting, MeetingReply, VERSION};
use super::*;
use crate::flight::LastCalls;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::spawn;
use tensor::mix;

pub(super) fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes(), "a test").unwrap()
}
pub(super) fn knowing(launch: Launch, secret: &Secret) -> Launch {
    Launch { secret: secret.clone(), ..launch }
}
/// A connection with rank 0, as soon as it listens, on which nothing was said.
fn bare(port: u16) -> TcpStream {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(why) => assert!(begun.elapsed() < LIMIT, "{why}"),
        }
        sleep(Duration::from_millis(2));
    }
}
fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
/// A connection that has shown this secret.
fn known(port: u16, secret: &Secret) -> TcpStream {
    reached(|| Ok(vec![at(port)]), secret, Instant::now() + LIMIT).unwrap()
}
fn hello(rank: usize, ranks: usize) -> Greeting {
    Greeting::Hello { version: VERSION.into(), rank, ranks, asked: asked("a test"), at: at(9) }
}

/// Two ranks meet while others are there who say nothing, say it slowly, speak otherwise, know another
/// secret, or know it and greet as nobody does. Kills: one of them who holds the others, is taken for a rank,
/// or ends the meeting.
#[test]
fn strangers_hold_nobody() {
    let (own, other, port) = (secret("a secret of these two"), secret("another secret than theirs"), port());
    let met = scope(|threads| {
        let zero = threads
            .spawn(|| Processes::meet(&knowing(Launch::nearby(0, 2, port), &own), &asked("a test"), LIMIT));
        let silent: Vec<_> = (0..20).map(|_| bare(port)).collect();
        let slow = bare(port);
        threads.spawn(move || {
            for byte in b"equipart, and so on" {
                if (&slow).write_all(&[*byte]).is_err() {
                    return;
                }
                sleep(Duration::from_millis(100));
            }
        });
        bare(port).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let denied = reached(|| Ok(vec![at(port)]), &other, Instant::now() + LIMIT).unwrap_err();
        assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);
        let greets = |head: &[u8]| {
            let stream = known(port, &own);
            (&stream).write_all(&(head.len() as u64).to_le_bytes()).unwrap();
            (&stream).write_all(head).unwrap();
            stream
        };
        let odd = [
            greets(b"{}"),
            greets(br#"{"Hello":{"rank":-1}}"#),
            greets(&serde_json::to_vec(&hello(77, 2)).unwrap()),
            greets(&serde_json::to_vec(&Greeting::Own { meeting: 3, rank: 1, shares: false }).unwrap()),
        ];
        let huge = known(port, &own);
        (&huge).write_all(&(1u64 << 60).to_le_bytes()).unwrap();
        let begun = Instant::now();
        let one =
            Processes::meet(&knowing(Launch::nearby(1, 2, port), &own), &asked("a test"), LIMIT).map(drop);
        let zero = zero.join().unwrap().map(drop);
        assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
        drop((silent, odd, huge));
        [zero, one]
    });
    assert_eq!(met, [Ok(()), Ok(())]);
}

/// Kills: a rank that waits for the whole limit where another program answers, or says nothing of a program
/// that answers with nothing.
#[test]
fn another_program_at_the_port_is_named() {
    for (answer, says) in [
        (
            Some(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..]),
            "another program listens at 127.0.0.1:PORT, and its answer begins with \"HTTP/1.1\"; choose a free MASTER_PORT",
        ),
        (
            Some(b""),
            "rank 1 found no rank 0 at 127.0.0.1:PORT within 1s: a program listens there and closes the connection",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, begun) = (listener.local_addr().unwrap().port(), Instant::now());
        let limit = if answer == Some(b"") { Duration::from_secs(1) } else { LIMIT };
        spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                drop(answer.map(|answer| (&stream).write_all(answer)));
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
        });
        let why = met(&Launch::nearby(1, 2, port), "a test", limit).unwrap_err();
        assert_eq!(
            why.replace(&port.to_string(), "PORT"),
            says.replace("within 1s", &format!("within {limit:?}"))
        );
        assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
    }
}

/// Kills: a rank that came, and dies or stops before all have met, and is not named, or not in time.
#[test]
fn who_leaves_the_meeting_is_named() {
    let limit = Duration::from_secs(1);
    for (stays, says) in [
        (None, "rank 1 connected, and exited before all ranks had met, or its connection broke"),
        (Some(false), "rank 1 connected, and exited before all ranks had met, or its connection broke"),
        (Some(true), "rank 1 connected, and then sent nothing for 1s"),
    ] {
        let (port, begun) = (port(), Instant::now());
        let [zero, two] = scope(|threads| {
            let rank = |rank| threads.spawn(move || met(&Launch::nearby(rank, 3, port), "a test", limit));
            let zero = rank(0);
            let one = known(port, &Secret::default());
            send(&one, &hello(1, 3)).unwrap();
            let two = match stays {
                None => {
                    drop(one); // before rank 2 has come
                    None
                }
                Some(stays) => {
                    let two = rank(2);
                    let _: MeetingReply = receive(&mut &one, LONGEST).unwrap();
                    let _ = stays.then(|| sleep(2 * limit + Duration::from_millis(1500)));
                    drop(one);
                    Some(two)
                }
            };
            [Some(zero), two].map(|met| met.map(|met| met.join().unwrap().unwrap_err()))
        });
        assert_eq!(zero.as_deref(), Some(says));
        assert!(two.as_deref().is_none_or(|two| two == says), "{two:?}");
        assert!(begun.elapsed() < 2 * limit + LIMIT / 2, "{:?}", begun.elapsed());
    }
}

/// Kills: a rank of another meeting that is taken for one of this.
#[test]
fn who_comes_again_says_of_which_meeting() {
    let (port, limit) = (port(), Duration::from_secs(1));
    let met = scope(|threads| {
        let zero = threads.spawn(move || met(&Launch::nearby(0, 2, port), "a test", limit));
        let one = known(port, &Secret::default());
        send(&one, &hello(1, 2)).unwrap();
        let MeetingReply { meeting, .. } = receive(&mut &one, LONGEST).unwrap();
        let order = known(port, &Secret::default());
        send(&order, &Greeting::Own { meeting: meeting ^ 1, rank: 1, shares: false }).unwrap();
        send(&one, &Vec::<usize>::new()).unwrap();
        zero.join().unwrap()
    });
    assert_eq!(met, Err("rank 0 did not get all connections from rank 1".to_string()));
}

/// Kills: a report of a rank that is believed unchecked, and told to the user.
#[test]
fn a_rank_misses_only_ranks_that_there_are() {
    for missing in [(0..100_000).collect(), vec![2], vec![0, 0], vec![1, 0]] {
        let (port, limit) = (port(), Duration::from_secs(1));
        let met = scope(|threads| {
            let zero = threads.spawn(move || met(&Launch::nearby(0, 2, port), "a test", limit));
            let one = known(port, &Secret::default());
            send(&one, &hello(1, 2)).unwrap();
            let _: MeetingReply = receive(&mut &one, LONGEST).unwrap();
            send(&one, &missing).unwrap();
            zero.join().unwrap()
        });
        assert_eq!(met, Err("rank 1 reports ranks that it misses, and not ranks below 2 in order".into()));
    }
}

/// All bytes that rank 1 of two sends to rank 0 after they have met, and the result of rank 0.
fn recorded() -> (Vec<u8>, Vec<f32>) {
    let (front, back) = (port(), port());
    let front_door = TcpListener::bind(at(front)).unwrap();
    let copied = |mut from: TcpStream, mut to: TcpStream| {
        spawn(move || {
            let (mut all, mut some) = (Vec::new(), vec![0; 1 << 16]);
            while let Ok(n @ 1..) = from.read(&mut some) {
                all.extend_from_slice(&some[..n]);
                if to.write_all(&some[..n]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Write);
            all
        })
    };
    let between = spawn(move || {
        // First comes the connection of calls, then, in any order, that of their order and that of shares.
        let mut said = Vec::new();
        for _ in 0..3 {
            let (near, far) = (front_door.accept().unwrap().0, bare(back));
            said.push(copied(near.try_clone().unwrap(), far.try_clone().unwrap()));
            copied(far, near);
        }
        said.into_iter().map(|said| said.join().unwrap()).collect::<Vec<_>>()
    });
    let ran = scope(|threads| {
        let one = |rank, port| {
            threads.spawn(move || {
                let processes =
                    Processes::meet(&Launch::nearby(rank, 2, port), &asked("a test"), LIMIT).unwrap();
                world(LIMIT).over(&processes).unwrap().run(program).unwrap().swap_remove(0)
            })
        };
        let both = [one(0, back), one(1, front)];
        both.map(|rank| rank.join().unwrap())
    });
    let said = between.join().unwrap();
    let mut calls = &said[0][8 + 32 + 32..]; // behind what shows the secret
    let _: Greeting = receive(&mut calls, LONGEST).unwrap();
    let _: Vec<usize> = receive(&mut calls, LONGEST).unwrap();
    (calls.to_vec(), ran.into_iter().next().unwrap())
}
fn world(limit: Duration) -> World {
    World::threads(&[(Axis::Tp, 2)]).unwrap().limit(limit)
}
fn program(device: Cpu<f32>, mesh: Mesh<Host>) -> Result<Vec<f32>, CommError> {
    together(&device, mesh.rank(), mesh.group(Axis::Tp))
}

/// Rank 0's run with one that has met it as rank 1, says this, and goes.
fn run_with(said: Vec<u8>, limit: Duration) -> Result<Vec<f32>, RankError> {
    let port = port();
    scope(|threads| {
        threads.spawn(move || {
            let one = known(port, &Secret::default());
            send(&one, &hello(1, 2)).unwrap();
            let MeetingReply { meeting, .. } = receive(&mut &one, LONGEST).unwrap();
            let _others = [false, true].map(|shares| {
                let stream = known(port, &Secret::default());
                send(&stream, &Greeting::Own { meeting, rank: 1, shares }).unwrap();
                stream
            });
            send(&one, &Vec::<usize>::new()).unwrap();
            let _: Option<String> = receive(&mut &one, LONGEST).unwrap();
            let mut hears = one.try_clone().unwrap();
            threads.spawn(move || std::io::copy(&mut hears, &mut std::io::sink()));
            let _ = (&one).write_all(&said); // rank 0 may have had enough
            sleep(limit / 4);
            let _ = one.shutdown(std::net::Shutdown::Both);
        });
        let zero = Processes::meet(&Launch::nearby(0, 2, port), &asked("a test"), LIMIT).unwrap();
        let outcome = world(limit).over(&zero).unwrap().run(program);
        zero.leave();
        outcome.map(|mut ranks| ranks.swap_remove(0))
    })
}

/// Bytes of a rank with something in them changed: bytes, a number made one more or less, eight bytes
/// made large, a piece left out or repeated.
pub(super) fn mutated(said: &[u8], seed: usize) -> Vec<u8> {
    let draw = |i: usize, below: usize| mix((seed * 64 + i) as u64) as usize % below.max(1);
    let mut said = said.to_vec();
    for i in 0..=draw(0, 3) {
        let at = draw(3 * i + 1, said.len());
        match draw(3 * i + 2, 6) {
            0 => said[at] ^= 1 << draw(3 * i + 3, 8),
            1 => said[at] = draw(3 * i + 3, 256) as u8,
            2 => said[at] = said[at].wrapping_add([1, 0xff][draw(3 * i + 3, 2)]), // a number beside
            3 => {
                drop(said.splice(at.min(said.len() - 8)..at.min(said.len() - 8) + 8, u64::MAX.to_le_bytes()));
            }
            4 => drop(said.drain(at..(at + draw(3 * i + 3, 4000)).min(said.len()))),
            _ => {
                let again = said[at..(at + draw(3 * i + 3, 4000)).min(said.len())].to_vec();
                drop(said.splice(at..at, again));
            }
        }
        if said.len() < 16 {
            break;
        }
    }
    said
}

/// Runs frames with something in them changed; `EQUIPART_FRAMES` is their number. Kills: a rank, length,
/// offset, list or number that another process tells and that is used unchecked: a panic, a hang, memory read
/// beyond its end.
#[test]
fn what_a_rank_tells_is_checked() {
    let (said, right) = recorded();
    assert_eq!(run_with(said.clone(), LIMIT).unwrap(), right, "as it was said");
    for rank in [2, 77, usize::MAX] {
        let mut ended = Vec::new();
        send_frame(
            &mut ended,
            &encoded(&ProcessReport::Ended(Some(((rank, "why".into()), LastCalls::default())))),
            &[],
        )
        .unwrap();
        let error = run_with(ended, LIMIT).unwrap_err();
        assert!(error.rank == 1 && error.reason.contains("sent an invalid report"), "{rank}: {error}");
    }
    let n = std::env::var("EQUIPART_FRAMES").map_or(48, |n| n.parse().unwrap());
    let (begun, limit) = (Instant::now(), Duration::from_millis(200));
    let mut refused = 0;
    for seed in 0..n {
        let Err(error) = run_with(mutated(&said, seed), limit) else { continue };
        refused += 1;
        let panics =
            ["index out", "out of range", "overflow", "unwrap", "assertion", "unreachable", "capacity"];
        assert!(!panics.iter().any(|words| error.reason.contains(words)), "{seed}: {error}");
        assert!(error.reason.len() < 1000, "{seed}: {error}");
    }
    println!("{refused} of {n} were refused, in {:.1} s", begun.elapsed().as_secs_f64());
    assert!(refused > n / 4, "{refused} of {n}");
}
