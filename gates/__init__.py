"""May this model be deployed? Every gate answers with a verdict and a sentence."""
