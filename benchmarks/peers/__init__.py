"""dstransformer beside other systems on the same work, in turns."""
