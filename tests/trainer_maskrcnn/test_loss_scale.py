"""Steps in float16: an overflow leaves weights and momenta as they are, and the loss scale follows the gradients."""

import numpy as np
import tensorflow as tf

from trainer.common.ranks.precision import FIRST_SCALE, GROWS_AFTER
from trainer.maskrcnn.layers import tf1
from trainer.maskrcnn.loss_scale import LossScale


def test_an_overflow_changes_nothing_but_the_loss_scale() -> None:
    """One bad gradient of two is enough; the next good step goes on as if nothing had been."""
    with tf.Graph().as_default(), tf1.Session() as session:
        weights = [tf1.get_variable(name, initializer=np.float32([1.0, 2.0])) for name in "ab"]
        gradients = [tf1.placeholder(tf.float32, [2]) for _ in weights]
        dynamic, optimizer = LossScale("dynamic"), tf1.train.MomentumOptimizer(0.5, 0.9)
        step = dynamic.guarded(gradients, lambda: optimizer.apply_gradients(zip(gradients, weights, strict=True)))
        session.run(tf1.global_variables_initializer())
        state = {v.op.name: v for v in tf1.global_variables() if "loss_scale" not in v.op.name}
        assert {"a", "b", "a/Momentum", "b/Momentum"} == set(state)
        good, bad = np.float32([2.0, 0.0]), np.float32([np.inf, 0.0])

        session.run(step, dict(zip(gradients, (good, good), strict=True)))
        after = session.run(state)
        np.testing.assert_allclose(after["a"], [0.0, 2.0])
        for wrong in (bad, np.float32([np.nan, 0.0])):
            session.run(step, dict(zip(gradients, (good, wrong), strict=True)))
        for name, value in session.run(state).items():
            np.testing.assert_array_equal(after[name], value, err_msg=name)
        assert FIRST_SCALE / 4 == session.run(dynamic.value)
        session.run(step, dict(zip(gradients, (good, good), strict=True)))
        np.testing.assert_allclose(session.run(weights[0]), [0.0 - 0.5 * 1.9 * 2, 2.0])
        dynamic._good.load(GROWS_AFTER - 1, session)
        session.run(step, dict(zip(gradients, (good, good), strict=True)))
        assert FIRST_SCALE / 2 == session.run(dynamic.value)


def test_a_given_loss_scale_stays() -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        fixed = LossScale("1024")
        step = fixed.guarded([tf.constant(np.inf)], tf.no_op)
        session.run(tf1.global_variables_initializer())
        session.run(step)
        assert 1024 == session.run(fixed.value)
