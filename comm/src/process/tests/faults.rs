//! Ranks as processes of this program, one of which is killed, stopped, exits, or does something else, at a
//! random moment of random calls: all others end, and all name that rank. `cargo xtask faults` tries many.
use super::{LIMIT, asked, port};
use crate::Processes;
use crate::process::launch::Launch;
use crate::threads::tests::acts::Field;
use crate::threads::tests::stress::{FAULTS, Fault, Run};
use rustix::process::{Signal, getpid, kill_process};
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio, exit};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Variable that makes this program a rank: its seed, rank and port.
const RANK: &str = "EQUIPART_FAULT_RANK";
/// Path of the test, for the program that is a rank.
const TEST: &str = "process::tests::faults::every_run_ends_among_processes_and_names_the_culprit";
/// Limit of a wait for a rank that does not come.
const LATE: Duration = Duration::from_millis(700);

/// Draws a run: half of the faults are of processes.
fn drawn(seed: u64) -> Run {
    const OF_PROCESSES: [Fault; 4] = [Fault::Kill, Fault::Stop, Fault::Exit, Fault::Kill];
    Run::drawn(seed, if seed.is_multiple_of(3) { &FAULTS } else { &OF_PROCESSES })
}
/// Time from the culprit's call until its process ends or stops: half of them in the middle of calls.
fn delay(run: &Run) -> Duration {
    Duration::from_micros([0, 2000][run.draw(7, 2)] * run.draw(8, 1000) as u64 / 1000)
}

/// Ends or stops this process.
fn ends(fault: Fault) {
    match fault {
        Fault::Kill => kill_process(getpid(), Signal::KILL).unwrap(),
        Fault::Stop => {
            kill_process(getpid(), Signal::STOP).unwrap();
            sleep(LIMIT); // signals reach other threads first
        }
        Fault::Exit => exit(3),
        _ => sleep(2 * LATE),
    }
}

/// Is a rank: prints how the run ended.
fn be_rank(seed: u64, rank: usize, port: u16) {
    let run = drawn(seed);
    let processes =
        Processes::meet(&Launch::nearby(rank, run.ranks(), port), &asked("faults"), LIMIT).unwrap();
    let apart = || match delay(&run) {
        Duration::ZERO => ends(run.fault),
        delay if run.fault.is_of_processes() => drop(spawn(move || {
            sleep(delay);
            ends(run.fault);
        })),
        _ => ends(run.fault),
    };
    let world = run.world(LATE).over(&processes).unwrap();
    let outcome = world.run(|device: Field, mesh| run.rank(&device, &mesh, &apart));
    match outcome {
        Ok(_) => println!("\nreported\n\n"),
        Err(error) => {
            let calls = error.told_by.map_or_else(|| error.calls.to_string(), |_| String::new());
            println!("\nreported {error}\n{calls}\n");
        }
    }
    if rank == run.culprit && run.fault.is_of_processes() {
        sleep(LIMIT); // it ends no other way
    }
}

fn start(seed: u64, rank: usize, port: u16) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut rank_command = Command::new(program);
    rank_command.args([TEST, "--exact", "--nocapture", "--test-threads=1"]);
    rank_command.env(RANK, format!("{seed} {rank} {port}")).stdin(Stdio::null());
    rank_command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs processes, and checks what the ranks other than the culprit report. Returns the fault, and whether
/// it came to pass.
fn run(seed: u64) -> (Fault, bool) {
    let (run, port) = (drawn(seed), port());
    let mut ranks: Vec<_> = (0..run.ranks()).map(|rank| start(seed, rank, port)).collect();
    let (begun, mut hang) = (Instant::now(), false);
    let of_process = run.fault.is_of_processes();
    let others = |rank: usize| rank != run.culprit || !of_process;
    while ranks
        .iter_mut()
        .enumerate()
        .any(|(rank, child)| others(rank) && child.try_wait().unwrap().is_none())
    {
        hang = begun.elapsed() > LIMIT;
        if hang {
            break;
        }
        sleep(Duration::from_millis(1));
    }
    let mut all = Vec::new();
    for (rank, mut child) in ranks.into_iter().enumerate() {
        drop(child.kill());
        let output = child.wait_with_output().unwrap();
        let [said, errors] = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap());
        assert!(!hang, "seed {seed} hangs ({:?} of {}); rank {rank}: {said}", run.fault, run.culprit);
        if others(rank) {
            let reported = said.split_once("\nreported").map(|(_, reported)| reported);
            let reported = reported.unwrap_or_else(|| panic!("seed {seed}, rank {rank}: {said}{errors}"));
            let (first, calls) = reported.split_once('\n').unwrap();
            let calls = calls.split("\n\n").next().unwrap_or_default();
            all.push((first.trim().to_owned(), calls.trim().to_owned()));
        }
    }
    let late = of_process && !delay(&run).is_zero();
    all.retain(|(reported, _)| !late || !reported.is_empty()); // it had reported its end to some
    for (reported, calls) in &all {
        let first = &all[0];
        assert_eq!(
            *reported, first.0,
            "seed {seed}: {:?} of {}\n{}\n{calls}",
            run.fault, run.culprit, first.1
        );
        let reported = Some(&**reported).filter(|reported| !reported.is_empty());
        run.check(reported, !of_process, calls);
    }
    let tellers = all.iter().filter(|(_, calls)| !calls.is_empty()).count();
    let told = all.iter().filter(|(reported, _)| !reported.is_empty()).count();
    // all tell if the culprit is lost when they have ended well
    let lost = of_process && (late || run.is_near_the_end());
    // a slow one tells, too, if the others have left when it goes on
    let most = if lost { told } else { 1 + usize::from(run.fault == Fault::Delay) };
    assert!(
        tellers >= told.min(1) && tellers <= most,
        "seed {seed}: {:?} of {}; {tellers} tell: {all:#?}",
        run.fault,
        run.culprit
    );
    (run.fault, all.first().is_some_and(|(reported, _)| !reported.is_empty()))
}

/// Kills: a process that waits for good for one that is gone, an echo reported as the cause, processes that
/// disagree about it.
#[test]
fn every_run_ends_among_processes_and_names_the_culprit() {
    if let Ok(rank) = std::env::var(RANK) {
        let numbers: Vec<u64> = rank.split(' ').map(|number| number.parse().unwrap()).collect();
        return be_rank(numbers[0], numbers[1] as usize, numbers[2] as u16);
    }
    let wanted = std::env::var("EQUIPART_FAULTS").map_or(12, |n| n.parse::<usize>().unwrap() / 10);
    let (started, mut seen, mut faults) = (Instant::now(), BTreeMap::new(), 0);
    for seed in 0.. {
        let (fault, passed) = run(seed);
        *seen.entry(fault).or_insert(0) += usize::from(passed);
        faults += usize::from(passed);
        if faults >= wanted {
            break;
        }
    }
    println!("{faults} faults among processes ended in {:.1?}, each named: {seen:?}", started.elapsed());
}
