"""Steps sequences as a scheduler does, without one."""

from services.worker.check import check_batch
from services.worker.messages import Batch


class Run:
    """Steps sequences until each has enough output."""

    def __init__(self, stepper):
        self.stepper = stepper
        self.step_id = 0
        self.num_steps = 0

    def step(self, sequences, *, max_rows=10**6, draft=lambda sequence: (), released=()):
        steps = [sequence.step(max_rows=max_rows, draft=draft(sequence)) for sequence in sequences]
        self.step_id += 1
        batch = Batch(step_id=self.step_id, steps=steps, released_sequence_ids=list(released))
        check_batch(batch, self.stepper.sequences, self.stepper.facts)
        output = self.stepper.run(batch)
        for sequence, step in zip(sequences, steps, strict=True):
            outcome = output.outcomes.get(sequence.id)
            if isinstance(outcome, Exception):
                continue
            sequence.commit(step, outcome)
        return output

    def until(self, sequences, num_output_tokens, **options):
        while running := [sequence for sequence in sequences if len(sequence.output) < num_output_tokens]:
            self.step(running, **options)
            self.num_steps += 1
        return [sequence.output for sequence in sequences]
