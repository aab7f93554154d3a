use super::*;
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;

/// What a watcher saw.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Sight>>);

#[derive(Default)]
struct Sight {
    batches: Vec<usize>,
    given_up: usize,
    panics: Vec<String>,
}

impl Watch for Seen {
    fn batch(&self, size: usize) {
        self.0.lock().unwrap().batches.push(size);
    }

    fn given_up(&self) {
        self.0.lock().unwrap().given_up += 1;
    }

    fn panicked(&self, message: String) {
        self.0.lock().unwrap().panics.push(message);
    }
}

const RULES: Rules = Rules { batch: 4, wait: Duration::from_millis(50), queue: 8 };

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn those_who_have_a_place_are_answered_together_and_in_their_own_words() {
    let seen = Seen::default();
    let lane = Lane::new("double", RULES, seen.clone(), |inputs: &[u32]| inputs.iter().map(|x| 2 * x).collect());
    let lane = lane.unwrap();
    let answers = block_on(async {
        let places: Vec<Place> = (0..4).map(|_| lane.reserve(1).unwrap()).collect();
        let asked = places.into_iter().zip(1..).map(|(place, input)| lane.ask(place, input));
        futures_util::future::join_all(asked).await
    });
    assert_eq!(answers, [Ok(2), Ok(4), Ok(6), Ok(8)]);
    assert_eq!(seen.0.lock().unwrap().batches, [4]);
}

#[test]
fn whoever_comes_alone_does_not_wait() {
    let rules = Rules { wait: Duration::from_mins(1), ..RULES };
    let lane = Lane::new("alone", rules, Seen::default(), |inputs: &[u32]| inputs.to_vec()).unwrap();
    let begin = Instant::now();
    assert_eq!(block_on(lane.ask(lane.reserve(1).unwrap(), 7)), Ok(7));
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn nobody_waits_longer_than_the_budget_for_one_who_never_comes() {
    let lane = Lane::new("patient", RULES, Seen::default(), |inputs: &[u32]| inputs.to_vec()).unwrap();
    let _never = lane.reserve(1).unwrap();
    assert_eq!(block_on(lane.ask(lane.reserve(1).unwrap(), 7)), Ok(7));
}

#[test]
fn a_full_queue_refuses_and_has_room_again_after_an_answer() {
    let (go, wait) = sync_channel::<()>(0);
    let wait = Mutex::new(wait);
    let lane = Lane::new("small", RULES, Seen::default(), move |inputs: &[u32]| {
        wait.lock().unwrap().recv().unwrap();
        inputs.to_vec()
    });
    let lane = Arc::new(lane.unwrap());
    let place = lane.reserve(8).unwrap();
    assert_eq!(lane.reserve(1).unwrap_err(), Refusal::Full("small".into()));
    assert!(matches!(lane.reserve(9).unwrap_err(), Refusal::Unfit(reason) if reason.contains("the most is 8")));
    let answered = thread::spawn({
        let lane = Arc::clone(&lane);
        move || block_on(lane.ask(place, 1))
    });
    go.send(()).unwrap();
    assert_eq!(answered.join().unwrap(), Ok(1));
    assert_eq!(lane.taken(), 0);
    assert!(lane.reserve(8).is_ok());
}

#[test]
fn a_panic_is_the_answer_to_its_question_alone() {
    let seen = Seen::default();
    let lane = Lane::new("thirteen", RULES, seen.clone(), |inputs: &[u32]| {
        assert!(!inputs.contains(&13), "thirteen came");
        inputs.to_vec()
    });
    let lane = lane.unwrap();
    let answers = block_on(async {
        let places: Vec<Place> = (0..3).map(|_| lane.reserve(1).unwrap()).collect();
        let asked = places.into_iter().zip([12, 13, 14]).map(|(place, input)| lane.ask(place, input));
        futures_util::future::join_all(asked).await
    });
    assert_eq!(answers, [Ok(12), Err(Refusal::Panicked), Ok(14)]);
    assert!(seen.0.lock().unwrap().panics.iter().all(|message| message.contains("thirteen came")));
    assert_eq!(block_on(lane.ask(lane.reserve(1).unwrap(), 1)), Ok(1), "the lane goes on");
}

#[test]
fn what_is_given_up_before_its_turn_is_never_computed() {
    let (go, wait) = sync_channel::<()>(0);
    let (wait, done) = (Mutex::new(wait), Arc::new(Mutex::new(Vec::new())));
    let (seen, computed) = (Seen::default(), Arc::clone(&done));
    let lane = Lane::new("busy", RULES, seen.clone(), move |inputs: &[u32]| {
        wait.lock().unwrap().recv().unwrap();
        computed.lock().unwrap().extend_from_slice(inputs);
        inputs.to_vec()
    });
    let lane = Arc::new(lane.unwrap());
    block_on(async {
        let (first, second) = (lane.reserve(4).unwrap(), lane.reserve(1).unwrap());
        let busy = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move { lane.ask(first, 1).await }
        });
        let given_up = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move { lane.ask(second, 2).await }
        });
        // both are in the queue before one of them leaves
        tokio::time::sleep(Duration::from_millis(20)).await;
        given_up.abort();
        assert!(given_up.await.unwrap_err().is_cancelled());
        go.send(()).unwrap();
        assert_eq!(busy.await.unwrap(), Ok(1));
        let last = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move { lane.ask(lane.reserve(1).unwrap(), 3).await }
        });
        tokio::task::yield_now().await;
        go.send(()).unwrap();
        assert_eq!(last.await.unwrap(), Ok(3));
    });
    assert_eq!(*done.lock().unwrap(), [1, 3]);
    assert_eq!(seen.0.lock().unwrap().given_up, 1);
}
